"""The commands `dapo infer` and `dapo serve`: a model answers problems, on the screen or behind a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dapo_cli.cli_shared import DEFAULT_RECIPE, SetOption, note


def infer(
    problem: Annotated[
        str | None, typer.Argument(metavar="[PROBLEM]", help="A problem; - or nothing reads standard input.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"Prompt, scorer and engine of this recipe. Default {DEFAULT_RECIPE}.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Ask this model instead of the recipe's eval.model.")] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN[@STEP]", help="Ask a checkpoint of this run.")] = None,
    file: Annotated[Path | None, typer.Option(help="Ask every problem of a jsonl, json, csv or parquet file.")] = None,
    problem_column: Annotated[str | None, typer.Option(help="With --file: the column of the problem.")] = None,
    answer_column: Annotated[str | None, typer.Option(help="With --file: the column of the ground truth.")] = None,
    gold: Annotated[str | None, typer.Option(help="Ground truth of PROBLEM: the verdict is shown.")] = None,
    example: Annotated[
        bool, typer.Option("--example", help="The three AIME 2024 problems of the public example.")
    ] = False,
    samples: Annotated[int, typer.Option(min=1, help="Responses per problem.")] = 1,
    max_response_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default 1.0, as in the public example.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default 0.7, as in the public example.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another one gives other responses.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Append responses to this jsonl file; resumes.")] = None,
    engine: Annotated[Literal["hf", "vllm"] | None, typer.Option(help="Instead of eval.engine.")] = None,
    set_: SetOption = None,
) -> None:
    """Ask a model, watch it answer, and see what the scorer makes of it."""
    from dapo_cli.inference.command import run_inference
    from dapo_cli.inference.options import InferenceOptions

    options = InferenceOptions(
        problem=problem,
        recipe=recipe,
        model=model,
        run=run,
        file=file,
        problem_column=problem_column,
        answer_column=answer_column,
        gold=gold,
        example=example,
        samples=samples,
        max_response_tokens=max_response_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        out=out,
        engine=engine,
        overrides=tuple(set_ or []),
    )
    result = run_inference(options, note)
    if result.out is not None:
        note(f"{result.out}: {len(result.responses)} of {result.asked} responses")
    if result.interrupted:
        raise typer.Exit(130)


def serve(
    model_or_recipe: Annotated[
        str, typer.Argument(metavar="[MODEL_OR_RECIPE]", help=f"A folder, hub id or recipe. Default {DEFAULT_RECIPE}.")
    ] = DEFAULT_RECIPE,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="GPUs of one replica; else as few as hold the weights.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Else GPUs / tensor parallel; on a CPU 1.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt and response together; else the model's positions.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; else the checkpoint's.")] = None,
    served_model: Annotated[str | None, typer.Option(help="The name it is served under; else its own.")] = None,
    chat_template: Annotated[Path | None, typer.Option(help="A jinja file in place of the tokenizer's.")] = None,
    vllm: Annotated[
        list[str] | None, typer.Option(metavar="ARGUMENT", help="Passed on to vLLM's server; repeatable.")
    ] = None,
    set_: SetOption = None,
) -> None:
    """Serve a model behind an API like OpenAI's, by Ray Serve and vLLM, as the public evaluation did."""
    from dapo_cli.serving.command import ServeOptions, serve_model

    options = ServeOptions(
        model_or_recipe=model_or_recipe,
        overrides=tuple(set_ or []),
        host=host,
        port=port,
        tensor_parallel=tensor_parallel,
        replicas=replicas,
        max_model_tokens=max_model_len,
        dtype=dtype,
        served_model=served_model,
        chat_template=chat_template,
        vllm=tuple(vllm or []),
    )
    serve_model(options, note)
