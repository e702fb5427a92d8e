"""What an evaluation is worth: scores, intervals, votes, comparisons and the line that says it. Pure mathematics."""

from dapo_cli.evaluation.statistics.bootstrap import BootstrapScores, bootstrap_at_k
from dapo_cli.evaluation.statistics.breakdown import LengthBin, ResponseRates, accuracy_by_length, response_rates
from dapo_cli.evaluation.statistics.comparison import (
    Difference,
    PairedDifference,
    Published,
    paired_difference,
    published_difference,
    sign_test,
)
from dapo_cli.evaluation.statistics.intervals import (
    CONFIDENCE,
    Interval,
    effective_samples,
    effective_samples_on_these_problems,
    interval_over_problems,
    interval_over_samples,
    stderr_over_problems,
    stderr_over_samples,
)
from dapo_cli.evaluation.statistics.scores import avg_at_n, pass_at_k
from dapo_cli.evaluation.statistics.student import t_quantile
from dapo_cli.evaluation.statistics.verdict import comparison_line, verdict_line
from dapo_cli.evaluation.statistics.voting import (
    MajorityInOrder,
    MajorityScore,
    majority_at_k,
    majority_in_order,
)

__all__ = [
    "CONFIDENCE",
    "BootstrapScores",
    "Difference",
    "Interval",
    "LengthBin",
    "MajorityInOrder",
    "MajorityScore",
    "PairedDifference",
    "Published",
    "ResponseRates",
    "accuracy_by_length",
    "avg_at_n",
    "bootstrap_at_k",
    "comparison_line",
    "effective_samples",
    "effective_samples_on_these_problems",
    "interval_over_problems",
    "interval_over_samples",
    "majority_at_k",
    "majority_in_order",
    "paired_difference",
    "pass_at_k",
    "published_difference",
    "response_rates",
    "sign_test",
    "stderr_over_problems",
    "stderr_over_samples",
    "t_quantile",
    "verdict_line",
]
