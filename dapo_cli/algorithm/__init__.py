"""The paper as pure functions, one idea per file. No function changes its arguments.

Legend of shapes, used in trailing comments throughout:

- P: problems (prompts) of a step or minibatch
- G: rollouts per problem, the group size
- B: rollouts, P * G, in order of their groups
- T: response tokens of all B rollouts, one rollout after the other, no padding
- N: tokens of any kind, H: hidden size, V: vocabulary

Per-rollout arrays are numpy; only `policy_loss` and `logprobs` import torch.
"""
