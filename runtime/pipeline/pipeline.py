"""The public pipeline: a program, the stages that it runs, and ``step``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from pipeloom.ir.model.program import Program

from ..tensors.microbatches import Batch
from ..transport import ended
from .preparation import Prepared
from .reports import PipelineReports
from .step_arguments import StepData
from .step_inputs import Result, hand_out, taken


class Pipeline(PipelineReports):
    """One rank of a compiled program, ready to train.

    Every rank makes one, with the same program, and calls :meth:`step` as often as the others::

        pipeline = Pipeline(program, {0: first, 3: last}, loss=cross_entropy, optimizer=Adam)
        losses = []
        pipeline.step(tokens, target=labels, losses=losses)

    Arguments:
        program: what ``compile_schedule`` made or ``ir.formats.load_program`` read.
        stages: the modules of the stages that this rank runs, by stage; or a sequence of all
            stages, or of this rank's. A callable makes its module where it is needed. A stage
            takes what the one before it gives, a tensor or a tuple of them, as its arguments (the
            first one takes what ``step`` is given). Where weights are streamed
            (``docs/weight-passing.md``) a rank needs all stages that it runs, owns or passes on.
        loss: ``loss(output, target)``, the mean over one microbatch, or a tuple of it and metrics;
            or ``"model"`` where the last stage's module computes it: it then returns a scalar, an
            output with one as ``loss`` (as Hugging Face's do), or a tuple that begins with one.
        scale_grads: gradients are those of the mean over all microbatches; False: of the sum.
        optimizer: makes the optimizer of one stage's parameters, as ``torch.optim.SGD`` with its
            options bound does. Gradients are then cleared when a step begins. Without it, they add
            up and the caller steps.
        tied: groups of (stage, parameter name) that are one parameter. Those that a rank sees to be
            one, as stages that it was given have one object, are tied without being named.
        skips: pairs of stages (i, j): of each, i returns one tensor more, in their order, which is
            the last argument of j; see :mod:`pipeloom.runtime.tensors.skip_connections`.
        names: what a parameter or buffer of a stage is called in the whole model, a function of
            stage and name, for :meth:`state_dict`; by default as in the stage.
        varying_shapes: let shapes be others in each step; all ranks then begin a step by telling
            each other. Microbatches of one step may differ in any case.
        param_dtype: the dtype that parameters and floating inputs are cast to for computing, and in
            which weights are sent; the modules keep theirs outside of ``step``, and so do the
            optimizers and the loss (mixed precision). By default the parameters' own.
        reduce_dtype: the dtype of gradients that are sent, or summed over ranks; by default that
            of ``param_dtype``. Each rank's sums have the parameters' own.
        clip_grad_norm: the most that the norm of all gradients may be before the optimizers step,
            as for ``torch.nn.utils.clip_grad_norm_``; None: any. A step with NaN or Inf in it is
            skipped.
        norm_groups: where parameters are shards that are no DTensors (tensor or expert parallelism
            of your own), patterns of their names in a stage, as for :func:`fnmatch.fnmatchcase`,
            and of each the process group that has the shards: ``{"*.experts.*":
            mesh["ep"].get_group()}``. Over it their squares are summed; all others count once.
            Asked for where pipelines run side by side that are no replicas in ``data_group`` and
            steps are judged by a norm; ``{}``: nothing is a shard.
        loss_scale: what losses are multiplied by before, and gradients divided by after the
            backward passes; steps with NaN or Inf are skipped, too, and the scale adapts.
        post_validation: with either of these two all ranks wait for each other before they step,
            unless the program relays norms (``compile_schedule(..., post_validation=True)``): then
            they step ahead, and again where that was wrong. False: they wait all the same.
        stages_as: ``"eager"`` runs modules as they are; ``"aten"`` each stage as graphs of F, B
            and W, which are traced before the first step and run without autograd, with the same
            gradients bit by bit; ``"inductor"`` these graphs compiled (``docs/graphs.md``). A stage
            that cannot be a graph runs as it is: :attr:`eager_stages` says why.
        group: the process group whose ranks are the program's; by default all processes. Where
            pipelines run side by side, all processes make theirs at the same time.
        data_group: the process group of those that have this rank in the replicas of the pipeline
            (``mesh["dp"].get_group()`` where ``group`` is ``mesh["pp"].get_group()``), over which a
            program compiled with ``data_parallel`` averages gradients. All start as the first, but
            for stages wrapped in ``fully_shard`` over it, of which each has its shards, and experts
            (DTensors over it, or named in ``norm_groups`` with it), which are each one's own.
        transport: the connections of all ranks, instead of the process group's: an object with the
            methods of :class:`~pipeloom.runtime.transport.Transport`, beside which the pipeline
            opens its own (:meth:`~pipeloom.runtime.transport.Transport.beside`). It stays open.
        device: where received tensors live; by default where the parameters do.
        timeout: seconds that a message or a reduction may take.
        memory: count live activation bytes
            (:class:`~pipeloom.runtime.measure.activation_ledger.Ledger`).
        pace: let each op take at least its time in the program's profile, asleep for the rest, as
            on devices of that speed: where ranks share cores, an op would otherwise be the faster
            the more of the others are idle. On a CPU only.
        verify: check the program first, by the verifier that trusts no compiler.
        check: ask when the pipeline is made and in its first step whether all ranks and replicas
            have the same program, options, parameters (names, shapes, dtypes, which of them are
            trained), microbatches and ``update``. Later steps ask nothing, except that all
            ranks compare a program that is new.

    Raises InvalidScheduleError where the program breaks the rules (a swapped receive, say), and
    InputError where it does not fit the processes, the stages or the ties, or where program, ties,
    dtypes or clipping are not the same on all ranks. What one rank raises all raise, with whose it
    is; and ExecutionError where a rank dies meanwhile, or does not make its own within ``timeout``.
    """

    def step(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        losses: list[Tensor] | None = None,
        metrics: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        program: Program | None = None,
        update: bool = True,
        **options: Any,
    ) -> Any:
        """One training step: all microbatches forward and backward, the reduction, the optimizer.

        ``inputs``: the first stage's arguments, needed on the ranks that run it; ``target``: the
        loss's, needed on those of the last one (keyword arguments of the last stage where the model
        computes its loss); ``options``: keyword arguments for all stages of this rank. Each is a
        whole batch, of which tensors, also in dicts and tuples, are cut along dimension 0 and all
        else is given to each microbatch; or a list of M microbatches, which may differ in shape.
        ``loss_kwargs``: keyword arguments of the loss, the same for each microbatch.

        On the last stage's rank the output of the whole batch is returned (as a list of the
        microbatches' where they do not fit together), unless ``return_outputs`` is off, which saves
        keeping it; ``losses`` becomes the list of the microbatches' losses, ``metrics`` of what the
        loss returned with them, detached; elsewhere None, and empty lists.

        ``program``, alike on all ranks: what this step runs instead, of any number of microbatches,
        with the stages, optimizers and options of this pipeline: gradients that add up, the loss
        scale and a verdict that is to come are theirs in common. It is kept until a step is given
        another, which has its connections and buffers. :meth:`trace`, ``peak_memory`` and such are
        then of it.

        ``update``, alike on all ranks: False leaves the gradients for the next step to add to;
        neither are they clipped nor do the optimizers step.

        Raises InputError for what is missing, ShapeError where shapes do not fit, ExecutionError
        where an instruction fails, or gathering sharded stages; on the other ranks, at once, the
        error of the first that failed.
        """
        data = StepData(inputs, options, target, loss_kwargs or {})
        ran = self._own
        if program is not None or not self._first.over:
            ran = self._of_step(program, update=update)
        self._ran = ran
        try:
            results = self._run(ran, data, keep=return_outputs, updates=update)
        except Exception as error:
            raised = ended(ran.context.transport, error)
            if raised is error:
                raise
            raise raised from error
        return hand_out(results, losses, metrics)

    def _run(self, ran: Prepared, data: StepData, *, keep: bool, updates: bool) -> list[Result]:
        """Runs a step on ``data``; keeps outputs and steps optimizers as asked."""
        store, setup, step_end = ran.context.store, ran.setup, ran.step_end
        ran.inputs.put(data)
        if ran is not self._last:
            self._take_turn(ran)
        if not store.resident:
            setup.gather()
        executor = setup.executor if setup.fixed and setup.executor else setup.prepared()
        for runner in setup.runners.values():
            runner.keep_outputs = keep
        try:
            step_end.begin(partial(self._refill, ran, data), updates=updates)
            if not store.resident:
                store.begin()
            ran.context.memory.start(setup.modules)
            executor.run()
            step_end.over()
        except Exception:
            step_end.give_up()
            raise
        if not setup.settled:
            setup.settle()
        return taken(ran.inputs.last)

    def eval(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        losses: list[Tensor] | None = None,
        metrics: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        microbatches: int | None = None,
        **options: Any,
    ) -> Any:
        """The forwards alone, without gradients and in evaluation mode, of any number of
        microbatches; all ranks call it.

        Arguments are those of :meth:`step`, and so is what is returned. Lists have as many
        microbatches as there are to evaluate, which need not be M: they run in rounds of M. Whole
        batches are cut into ``microbatches``, as long as some rank's list is, or into M. Without
        ``target`` no losses are computed, and no loss is needed.

        Training goes on as if there had been no evaluation, bit for bit: modes of modules, buffers,
        random numbers, gradients that add up and the trace of the last step are as before. With
        post-validation the last step is final first, as :meth:`finish` makes it.

        Raises, on all ranks, InputError or ShapeError for what any of them was given, and goes on
        afterwards; ExecutionError where an instruction fails.
        """
        self.finish()
        data = StepData(inputs, options, target, loss_kwargs or {})
        with self.together():
            results = self._forward_rounds.run(
                data, microbatches, wants_losses=losses is not None, keep_outputs=return_outputs
            )
        return hand_out(results, losses, metrics)
