"""`dapo infer`: responses of a model to single problems, streamed, with what the scorer makes of them."""
