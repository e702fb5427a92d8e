"""One small experiment per technique of DAPO, with its prediction written before it is run."""
