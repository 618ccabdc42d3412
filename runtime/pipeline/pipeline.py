"""The public class ``Pipeline``: a program, the stages that it runs, and ``step``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..tensors.microbatches import Batch
from ..transport import end_all
from .rank_pipeline import RankPipeline
from .step_inputs import Result, StepData, hand_out, taken
from .steps.prepared import Prepared


class Pipeline(RankPipeline):
    """One rank's part of a pipeline that runs a compiled program to train a model.

    Every rank creates one with the same program, and calls :meth:`step` equally often::

        pipeline = Pipeline(program, {0: first, 3: last}, loss=cross_entropy, optimizer=Adam)
        losses = []
        pipeline.step(tokens, target=labels, losses=losses)

    Arguments:
        program: the result of ``compile_schedule`` or ``ir.formats.load_program``.
        stages: a dict with the module of each stage that this rank runs, by stage; or a sequence of
            the modules of all stages, or of this rank's. Instead of a module, it may contain a
            function without arguments that creates the module, called only where it is needed. The
            arguments of a stage are the output of the previous one (a tensor or a tuple of
            tensors), those of the first stage are the inputs of ``step``. If weights are sent
            (``docs/weight-passing.md``), a rank needs all stages that it runs, owns or passes on.
        loss: a function ``loss(output, target)`` that returns the mean loss of one microbatch.
        scale_grads: True: gradients of the mean of all microbatches' losses; False: of their sum.
        optimizer: a function that creates the optimizer of one stage's parameters, for example
            ``partial(torch.optim.SGD, lr=0.1)``. Gradients are then cleared when a step begins.
            Without it, gradients add up over steps, and the caller runs an optimizer.
        tied: groups of (stage, parameter name) that are the same parameter. Parameters that are
            the same object in the stages given to a rank are tied automatically.
        skips: pairs of stages (i, j) with a skip connection: stage i returns one more tensor for
            each pair, in their order, which is the last argument of stage j; see
            :mod:`pipeloom.runtime.executor.skip_connections`.
        names: a function of a stage and the name in it of a parameter or buffer, which returns its
            name in the whole model, for :meth:`state_dict`; by default, the name in the stage.
        varying_shapes: allow shapes to change between steps; all ranks then exchange them at the
            beginning of each step. Microbatches of the same step may always differ in shape.
        param_dtype: the dtype to which parameters and floating-point inputs are cast for
            computation, and in which weights are sent (mixed precision). Outside of ``step``, the
            modules keep their own dtype, in which also the optimizers step and the loss is
            computed. By default, nothing is cast.
        reduce_dtype: the dtype of gradients that are sent or summed over ranks; by default,
            ``param_dtype``. Each rank accumulates gradients in the parameters' own dtype.
        clip_grad_norm: the maximum norm of all gradients, to which they are clipped before the
            optimizers step, as by ``torch.nn.utils.clip_grad_norm_``; None: no limit. A step with
            NaN or Inf gradients is skipped.
        norm_groups: for parameters that are shards but no DTensors (custom tensor or expert
            parallelism): a dict from patterns of their names in a stage, as for
            :func:`fnmatch.fnmatchcase`, to the process group whose processes have the shards:
            ``{"*.experts.*": mesh["ep"].get_group()}``. The squares of their gradients are summed
            over the group; all other parameters count once. Required if a norm is computed and
            there are several pipelines that are not replicas joined by ``data_group``; ``{}`` if
            these have no shards.
        loss_scale: the factor by which losses are multiplied before, and gradients divided after
            the backward passes. Steps with NaN or Inf gradients are skipped, and the scale adapts.
        post_validation: with ``clip_grad_norm`` or ``loss_scale``, all ranks wait for the norm of
            all gradients before their optimizers step, unless the program relays norms
            (``compile_schedule(..., post_validation=True)``). Then optimizers step without waiting,
            and steps that turn out to be wrong are repeated. False: they wait in any case.
        stages_as: ``"eager"`` runs modules as they are. ``"aten"`` runs each stage as graphs of F,
            B and W, which are traced before the first step and run without autograd; gradients
            are bitwise the same. ``"inductor"`` compiles these graphs (``docs/graphs.md``). A stage
            that cannot be traced runs as a module: :attr:`eager_stages` has the reason.
        group: the process group of the program's ranks; by default, all processes. If there are
            several pipelines, all processes create theirs at the same time.
        data_group: the process group that contains this rank's counterparts in all replicas of the
            pipeline (``mesh["dp"].get_group()`` if ``group`` is ``mesh["pp"].get_group()``). A
            program compiled with ``data_parallel`` averages gradients over it. All replicas start
            with the first one's parameters, except stages wrapped in ``fully_shard`` over this
            group and experts (DTensors over it, or named in ``norm_groups`` with it).
        transport: the connections of this rank to all others, instead of a process group: an object
            with the methods of :class:`~pipeloom.runtime.transport.Transport`. The pipeline creates
            its own transport from it (:meth:`~pipeloom.runtime.transport.Transport.beside`) and
            does not close it.
        device: the device of received tensors; by default, the parameters' device.
        timeout: the maximum seconds that a message or a reduction may take.
        memory: count the bytes of live activations
            (:class:`~pipeloom.runtime.measure.activation_ledger.Ledger`).
        pace: stretch each op to its time in the program's profile by sleeping, to emulate devices
            of that speed; only on a CPU. (Otherwise, ranks that share cores run an op faster while
            other ranks are idle.)
        verify: first check the program with the verifier, which is independent of the compiler.
        check: check at creation that all ranks and replicas have the same program, options and
            parameters (names, shapes, dtypes), and in the first step that they train the same
            parameters and agree on the number of microbatches and ``update``. Later steps check
            only that ranks which are given another program are given the same.

    Raises InvalidScheduleError if the program is invalid (for example, if receives are in another
    order than their sends), and InputError if the program does not match the number of processes,
    the stages or the tied parameters, or if programs or options differ between ranks. An error of
    one rank is raised on all ranks; its message names that rank. Raises ExecutionError if another
    rank dies or does not create its pipeline within ``timeout``.
    """

    def step(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        program: Program | None = None,
        update: bool = True,
        **options: Any,
    ) -> Any:
        """Runs one training step: all forwards and backwards, sums of gradients, the optimizers.

        ``inputs``: the first stage's arguments, needed on the ranks that run it. ``target``: the
        target of the loss, needed on the ranks that run the last stage. ``options``: keyword
        arguments for all stages of this rank. Each of these is a whole batch or a list of M
        microbatches, which may differ in shape. Tensors in a whole batch, also inside dicts and
        tuples, are split along dimension 0; other values are passed to every microbatch.
        ``loss_kwargs``: keyword arguments of the loss, the same for each microbatch.

        Returns the output of the whole batch on the last stage's rank, or a list of the
        microbatches' outputs if these cannot be concatenated; None on other ranks, or if
        ``return_outputs`` is False, which saves their memory. ``losses``: a list whose contents are
        replaced by the microbatches' losses, detached; on other ranks it is emptied.

        ``program``: the program to run instead of the pipeline's, with any number of microbatches;
        the same on all ranks. It uses the pipeline's stages, optimizers, options, accumulated
        gradients and loss scale. Its connections and buffers are kept until a step is given another
        program. :meth:`gather_trace`, ``peak_memory`` and similar then return its measurements.

        ``update``: False keeps the gradients, and the next step adds to them; they are not clipped,
        and the optimizers do not step. The same on all ranks.

        Raises InputError for missing arguments, ShapeError for wrong shapes, and ExecutionError if
        an instruction or the gathering of sharded stages fails. The other ranks then immediately
        raise the error of the rank that failed first.
        """
        data = StepData(inputs, options, target, loss_kwargs or {})
        ran = self._own
        if program is not None or not self._first.over:
            ran = self._of_step(program, update=update)
        self._ran = ran
        try:  # not a context manager, whose code is in another file
            results = self._run(ran, data, keep=return_outputs, updates=update)
        except Exception as error:
            end_all(ran.context.transport, error)
        return hand_out(results, losses)

    def _run(self, ran: Prepared, data: StepData, *, keep: bool, updates: bool) -> list[Result]:
        """Runs a step of the program ``ran``; returns the last stage's outputs and losses.

        ``keep``: whether outputs are kept. ``updates``: whether the optimizers step.
        """
        store, step_end = ran.context.store, ran.step_end
        ran.inputs.put(data)
        if ran is not self._last:
            self._take_turn(ran)
        if not store.resident:
            ran.gather()
        executor = ran.executor if ran.fixed and ran.executor else ran.prepared(data)
        for runner in ran.runners.values():
            runner.keep_outputs = keep
        try:
            step_end.begin(partial(self._refill, ran, data), updates=updates)
            if not store.resident:
                store.begin()
            ran.context.memory.start(ran.modules)
            executor.run()
            step_end.over()
        except Exception:
            step_end.give_up()
            raise
        return taken(ran.inputs.last)

    def eval(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Runs only forwards, without gradients and in evaluation mode; all ranks call it.

        Arguments and result are as in :meth:`step`. Without ``target`` and ``losses``, no losses
        are computed, and no loss function is needed.

        Training continues bitwise as without the evaluation: modes of modules, buffers, random
        states, accumulated gradients and the trace of the last step are unchanged. With
        post-validation, the last step is finished first, as by :meth:`finish`.

        Raises InputError or ShapeError on all ranks if the arguments of any rank are invalid; the
        pipeline remains usable. Raises ExecutionError if an instruction fails.
        """
        if "microbatches" in options:
            raise InputError("eval: microbatches was removed; it has the program's number of them")
        self.finish()
        data = StepData(inputs, options, target, loss_kwargs or {})
        with self.together():
            results = self._evaluation.run(
                data, wants_losses=losses is not None, keep_outputs=return_outputs
            )
        return hand_out(results, losses)
