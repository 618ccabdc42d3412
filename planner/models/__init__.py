"""A model's arithmetic: parameters, FLOPs, and bytes held and moved, layer by layer.

``model = read_model(given)`` (``reading``) reads a name, a file or a mapping. ``run =
TrainingRun.of(keys, model)`` (``run``). ``work_of(model, run)`` (``layers``) returns a
:class:`.work.ModelWork`, the work and memory of each layer. ``states_of(parameters, run)``
(``work``) returns bytes of weights, gradients and optimizer states; ``step_collectives`` what data
parallel ranks exchange per step.
"""
