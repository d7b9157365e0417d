"""A model that scores given tokens and generates none: the teacher of `train.objective: distill`."""
