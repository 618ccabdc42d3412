"""A model's arithmetic: parameters, FLOPs, and bytes held and moved, layer by layer.

``model = read_model(given)`` (in ``reading``) reads a preset's name, a file or a mapping. ``run =
TrainingRun.of(keys, model)`` (in ``run``) validates the parallel degrees and the batch.
``work_of(model, run)`` (in ``layers``) returns a :class:`.work.ModelWork`, the work and memory of
each layer. ``states_of(parameters, run)`` (in ``work``) returns the bytes of weights, gradients and
optimizer states; ``step_collectives(parameters, run)`` returns the collectives that data parallel
ranks run per step.
"""
