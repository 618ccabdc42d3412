"""A model's arithmetic: parameters, FLOPs, bytes held and moved, layer by layer.

``model = read_model(given)`` (``reading``) of a name, a file or a mapping; ``run =
TrainingRun.of(keys, model)`` (``run``); ``work_of(model, run)`` (``layers``) is a
:class:`.work.ModelWork`: what each layer does and holds; ``states_of(parameters, run)``
(``work``): bytes of weights, gradients and optimizer, and what data parallel ranks exchange once
a step.
"""
