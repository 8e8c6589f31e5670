"""ZeroCache: a model's state in device memory, host memory and on disks, wherever there is room."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import methodcaller
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taco_torch._extension import _C
from taco_torch.zerocache import construction, hooks, note, sizes
from taco_torch.zerocache.access import Access
from taco_torch.zerocache.aliases import Aliases
from taco_torch.zerocache.backward import FinalGradients
from taco_torch.zerocache.buckets import BucketGradients
from taco_torch.zerocache.lending import Lender
from taco_torch.zerocache.mean_gradients import MeanGradients
from taco_torch.zerocache.memory import available_bytes
from taco_torch.zerocache.model_state import ModelState
from taco_torch.zerocache.note import Notes
from taco_torch.zerocache.optimizer import CachedOptimizer
from taco_torch.zerocache.progress import shown
from taco_torch.zerocache.ranks import Ranks, ranks_of
from taco_torch.zerocache.sizes import Directories, format_bytes, parse_bytes
from taco_torch.zerocache.wrapping import Wrapping, wrapping_of

T = TypeVar("T")
_call = methodcaller("__call__")


def _let_go(store: Any, process: int) -> None:
    """At the end of a program that has not closed its cache: the disks are free again. A forked
    child has nothing to let go."""
    if os.getpid() == process:
        store.close(restore=False)


class ZeroCache(Access):
    """Memory for one model and its optimizer that reaches over several tiers.

    ::

        cache = ZeroCache(device="2GiB", host="4GiB", ssd="/data/cache:64GiB")
        model, optimizer = cache.wrap(model, torch.optim.AdamW(model.parameters(), lr=3e-4))

    and the training loop stays as it was. The sizes are caps on what the model's parameters and the
    optimizer's state take; activations and gradients come on top, as in plain torch.

    Args:
        device: for parameters in use: text such as "2GiB", or bytes. Without an accelerator this is
            memory of the host, too.
        host: for pages that wait, and state that is stepped.
        ssd: directories for the rest, with the bytes that may be used in each: text such as
            "/data/cache:64GiB", or a list of such texts. None: no disks. A directory belongs to one
            cache at a time; what a killed process left there is removed.
        page: what moves at once: a power of two, 4 KiB to 1 GiB.
        threads: of the optimizer; None: as many as torch uses (torch.get_num_threads()).
        io: "auto", "io_uring" or "threads": how disks are read and written. "auto" takes io_uring
            where the kernel allows it.
        io_bytes_per_second: a limit to what reads and writes of disks take; None: none.

    Raises:
        ValueError: a text is no size, a directory does not exist, cannot be written or is in use
            (by which process), or a cap is smaller than a page.
        RuntimeError: a disk has not as many bytes free.
    """

    def __init__(
        self,
        device: str | int,
        host: str | int,
        ssd: Directories = None,
        *,
        page: str | int = "4MiB",
        threads: int | None = None,
        io: str = "auto",
        io_bytes_per_second: str | int | None = None,
        _poison: bool = False,
    ) -> None:
        if not isinstance(io, str):
            raise TypeError(f'io={io!r} is no text: "auto", "io_uring" or "threads"')
        self._options = _C.zerocache.StoreOptions(
            parse_bytes(device, "device"),
            parse_bytes(host, "host"),
            sizes.existing_directories(ssd),
            page_bytes=parse_bytes(page, "page"),
            threads=sizes.parse_threads(threads),
            io=io,
            io_bytes_per_second=(
                parse_bytes(io_bytes_per_second, "io_bytes_per_second")
                if io_bytes_per_second is not None
                else 0
            ),
            poison=_poison,
        )
        self._store = _C.zerocache.Store(self._options)
        weakref.finalize(self, _let_go, self._store, os.getpid())
        self._model: nn.Module | None = None
        self._ranks: Ranks | None = None  # none: this process alone
        self._init_group: torch.distributed.ProcessGroup | None = None  # that builds together
        self._names: dict[nn.Parameter, str] = {}
        self._optimizer: CachedOptimizer | None = None
        self._hooks: hooks.Hooks | None = None
        self._lender: Lender | None = None
        self._gradients: FinalGradients | BucketGradients | None = None
        self._model_state: ModelState | None = None

    def init(
        self,
        *,
        shard_parameters: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> AbstractContextManager[None]:
        """For building a model that is larger than memory::

            with cache.init():
                model = Net(config)
            model, optimizer = cache.wrap(model, torch.optim.AdamW(model.parameters(), lr=3e-4))

        Inside, parameters move into the cache as soon as a module has them. Code that initializes
        them runs as it is, with the same random numbers, so they have the values that they would
        have without; loading a state dict inside works as well. At most the parameter that is being
        made is in memory beside the caps. Between init() and wrap() parameters are absent, as they
        are outside their modules after wrap(). What wrap()'s model does not have becomes ordinary
        memory again then, and so does everything at close().

        Args:
            shard_parameters: the ranks of ``process_group`` (None: all processes) build the same
                model, from the same random numbers, and each keeps its part of what is made from
                then on. ``wrap(shard_parameters=True)`` follows.
            process_group: of wrap(), too.

        Raises:
            RuntimeError: this cache has wrapped a model already, or is closed; this thread is in an
                ``init()`` already; this cache has parameters that are whole; or another rank has
                raised something, with its number and what that was.
            MismatchError: inside, or in wrap(): ranks make other parameters, or give them other
                values.
            ValueError: inside: ``device`` is too small for a parameter, or for those that one
                function is given, or all capacities together for what was made so far.
            TypeError: inside: a module is given a parameter of another cache.
        """
        store = self.store  # that it is closed comes first
        if self._model is not None:
            raise RuntimeError("this cache holds a model already: call init() before wrap()")
        if shard_parameters and not construction.is_building():
            self._share_init(process_group)
        return construction.built_in(store)

    def _share_init(self, process_group: torch.distributed.ProcessGroup | None) -> None:
        store = self._store
        if store.is_spread:
            self._group_of_init(process_group, True)
            return
        ranks = ranks_of(nn.Module(), process_group, spread=True)[1]
        if ranks is None:
            return
        if store.parameter_bytes > 0:
            raise RuntimeError(
                "this cache has parameters that are whole: call the first of its init() with "
                "shard_parameters=True, too"
            )
        store.make_spread(ranks.backend)
        self._init_group = ranks.group

    def _group_of_init(
        self, process_group: torch.distributed.ProcessGroup | None, spread: bool
    ) -> torch.distributed.ProcessGroup | None:
        if not spread:
            raise ValueError(
                "the model was built inside init(shard_parameters=True), so each rank has a part "
                "of it: give wrap() shard_parameters=True, too"
            )
        if process_group not in (None, self._init_group):
            raise ValueError(
                "process_group is another than that of init(shard_parameters=True): leave it out"
            )
        return self._init_group

    def wrap(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        step_in_backward: bool = False,
        clipping: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
        shard_parameters: bool = False,
    ) -> tuple[nn.Module, Any]:
        """Takes charge of a model's parameters and of its optimizer's state.

        The model is the same object, and so are its parameters. Outside the modules that use it a
        parameter's data is not there: code that touches it raises, naming the parameter; ``full()``
        and ``use()`` are for that. Buffers, gradients and activations stay as they are.

        Args:
            model: on the CPU. It needs no other copy of itself in memory for this; and where it
                was built inside ``init()``, not even the first. Inside DistributedDataParallel each
                rank keeps a part of the optimizer's state only: all ranks call wrap() then, and
                later step(), save() and load(), at once.
            optimizer: over the model's parameters: AdamW, Adam, SGD or Adafactor of torch.optim, or
                Lion of this package. State that it has already is taken over. None: the model is
                not trained.
            step_in_backward: pages are stepped while the backward pass goes on, as soon as all
                gradients on them are final, and averaged where several ranks train. ``p.grad`` is
                None afterwards, and ``optimizer.step()`` finishes what is left. The results are the
                same, bit for bit; docs/zerocache.md says what a program cannot do then.
            clipping: with ``step_in_backward``: pages are stepped by ``optimizer.step()``, after
                ``clip_grad_norm_()`` of this cache. Until then gradients that are final are kept on
                pages, too, as many bytes as parameters that are trained; ``p.grad`` is None.
            process_group: the ranks that share the state, where the model is not inside
                DistributedDataParallel, and the program averages gradients itself (with
                ``step_in_backward`` the cache does). None: those of DistributedDataParallel, or
                this process alone.
            shard_parameters: each rank of ``process_group`` (None: of all processes) keeps a part
                of the parameters, gradients and state. Parameters are gathered for their use, and
                gradients averaged as soon as they are final; ``p.grad`` is None afterwards. All
                ranks use the same modules in the same order (docs/zerocache.md).

        Returns:
            ``(model, optimizer)``: the same model, and a torch.optim.Optimizer that shares the
            given one's ``param_groups``; None where none was given.

        Raises:
            ValueError: a cap is too small, with how large it has to be; or the optimizer has
                parameters that the model has not.
            TypeError: a parameter cannot be moved (its dtype, its memory), with its name.
            NotImplementedError: the optimizer, or an option of it, is not supported.
            MismatchError: ranks hold other parameters, or other values; on all ranks.
            RuntimeError: this cache has wrapped a model already, or is closed; or another rank has
                failed, with its number and what it raised.
        """
        gradients = "in memory" if not step_in_backward else "kept" if clipping else "stepped"
        wrapping = self._prepare(model, optimizer, process_group, gradients, shard_parameters)
        self._names = {parameter: own[0] for parameter, own in wrapping.names.items()}
        self._model = wrapping.model
        try:
            self._together(partial(self._take_model, wrapping))
            if wrapping.spread:
                self._store.start_gathering()
            self._together(partial(self._take_state, wrapping, model))
        except BaseException:
            self.close()
            raise
        return model, self._optimizer

    def _prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        process_group: torch.distributed.ProcessGroup | None,
        gradients: str,
        spread: bool,
    ) -> Wrapping:
        store = self.store
        if self._model is not None:
            raise RuntimeError("this cache holds a model already: make another ZeroCache")
        if not isinstance(model, nn.Module):
            raise TypeError(f"{type(model).__name__} is no torch.nn.Module")
        if construction.is_building():
            raise RuntimeError("wrap() inside init(): leave that block first")
        if store.is_spread:
            process_group = self._group_of_init(process_group, spread)
        inner, self._ranks = ranks_of(model, process_group, spread)
        if self._ranks is not None:
            self._ranks.before_call = store.sync_ranks
        wrapping = self._together(
            partial(
                wrapping_of,
                store,
                inner,
                optimizer,
                around=model,
                gradients=gradients,
                spread=spread and self._ranks is not None,
            )
        )
        size = self._ranks.size if self._ranks is not None else 1
        self._together(partial(wrapping.check_room, store, size))
        if self._ranks is not None:
            wrapping.check_same(store, self._ranks, self._options.page_bytes)
        wrapping.thaw(store, self._ranks)
        return wrapping

    def _together(self, call: Callable[[], T]) -> T:
        """Calls it; where several ranks do at once, all of them succeed or raise."""
        return call() if self._ranks is None else self._ranks.together(call)

    def _take_model(self, wrapping: Wrapping) -> None:
        store, model = self._store, wrapping.model
        if wrapping.spread and self._ranks is not None and not store.is_spread:
            store.spread(self._ranks.backend)
        store.begin_run("place")
        new = [parameter for parameter in wrapping.names if not store.holds(parameter)]
        for parameter in new:
            for name in wrapping.names[parameter]:
                store.place(name, parameter)
        store.end_run()
        self._hooks = hooks.attach(model, store, self._names, store, Aliases(store, self._names))
        self._lender = Lender(store, self._hooks, self._names, self._has_stepped)
        self._model_state = ModelState(self, self._names, self._hooks)
        self._model_state.attach(model)
        if wrapping.rule is not None:
            store.add_state(wrapping.stateful(), wrapping.kinds)

    def _has_stepped(self, parameter: nn.Parameter) -> bool:
        return self._optimizer is not None and self._optimizer.has_stepped_early(parameter)

    def _take_state(self, wrapping: Wrapping, around: nn.Module) -> None:
        if self._ranks is not None and not wrapping.spread:
            self._store.share(self._ranks.backend)
        if wrapping.optimizer is not None and wrapping.rule is not None:
            self._optimizer = self._take_optimizer(wrapping.optimizer, wrapping)
            if wrapping.gradients != "in memory":
                self._take_gradients(self._optimizer, wrapping, around)

    def _take_optimizer(
        self, optimizer: torch.optim.Optimizer, wrapping: Wrapping
    ) -> CachedOptimizer:
        assert wrapping.rule is not None
        before = optimizer.state_dict() if optimizer.state else None
        taken = CachedOptimizer(
            self, optimizer, wrapping.rule, self._names, wrapping.trained, self._ranks
        )
        if before is not None:
            taken.load_state_dict(before)
            optimizer.state.clear()
        return taken

    def _take_gradients(
        self, optimizer: CachedOptimizer, wrapping: Wrapping, around: nn.Module
    ) -> None:
        assert self._hooks is not None
        if wrapping.gradients == "kept":
            self._store.keep_gradients()
        elif wrapping.gradients == "stepped":
            self._store.step_in_backward(len(wrapping.trained) + self._hooks.parts)
        in_order = [parameter for parameter in self._names if parameter in wrapping.trained]
        kind = wrapping.gradients
        if isinstance(around, DistributedDataParallel):
            self._gradients = BucketGradients(optimizer, around, in_order, kind, self._ranks)
        elif self._ranks is not None and not wrapping.spread:
            self._gradients = MeanGradients(optimizer, in_order, kind, self._ranks)
        else:
            self._gradients = FinalGradients(optimizer, in_order, kind)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """For backward passes whose gradients add up, all but the last of a step::

            with cache.accumulate():
                model(first).backward()
            model(second).backward()
            optimizer.step()

        Without ``step_in_backward`` it changes nothing: gradients add up as in torch.
        """
        if self._gradients is None:
            yield
            return
        with self._gradients.accumulate():
            yield

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_`` over all parameters of the model: call it between
        backward and ``optimizer.step()``.

        Where gradients are on pages (``clipping=True``), they are multiplied when they are stepped,
        in float32 and without rounding in between. The Euclidean norm is known by then; for another
        the gradients are read once more.

        Args:
            max_norm: what the norm is at most afterwards. ``inf`` asks for the norm alone, which
                is known with ``step_in_backward`` as well, if it is the Euclidean one.
            norm_type: the order; may be ``inf``.
            error_if_nonfinite: whether a norm that is infinite or NaN is an error.
            foreach: as torch's; ignored where gradients are on pages.

        Returns:
            The norm of all gradients before, as torch's: of no dimension.

        Raises:
            RuntimeError: the backward pass has used the gradients: with ``step_in_backward=True``
                wrap() has to be told ``clipping=True``. Or the norm is not finite; nothing is
                clipped then.
        """
        if self._model is None:
            raise self._without_model()
        if self._optimizer is not None and self._optimizer.kept is not None:
            self._optimizer.take_rest()
            return self._optimizer.kept.clip(max_norm, norm_type, error_if_nonfinite)
        if self._gradients is not None and float(max_norm) != math.inf:
            raise RuntimeError(
                "gradients are used in the backward pass: to clip them by their norm, call "
                "ZeroCache.wrap(..., step_in_backward=True, clipping=True)"
            )
        return torch.nn.utils.clip_grad_norm_(
            list(self._names), max_norm, norm_type, error_if_nonfinite, foreach
        )

    def left_backward(self) -> bool:
        """Whether ranks average gradients and a backward pass of this one has ended by an
        exception. The others are told then."""
        return self.store.is_spread and self._hooks is not None and self._hooks.leave_backward()

    def check_backward(self) -> None:
        """Raises RuntimeError where ranks average gradients and a backward pass of this one has
        ended by an exception: the others have been told, and have none to step with."""
        if self.left_backward():
            raise RuntimeError(
                "a backward pass of this rank has ended by an exception, so all ranks drop the "
                "gradients of that step: begin it anew"
            )

    def run_step(
        self, steps: list[tuple[Tensor, Tensor | None, Any]], *taken: Callable[[], object]
    ) -> None:
        """For the optimizer that wrap() returned. ``taken`` counts the steps.

        Python calls signal handlers between its own instructions, so at once after a long call;
        all calls are made from C, for nobody to find parameters stepped that are not counted.
        """
        if (store := self.store).run != "train":
            store.begin_run("step")  # without a forward pass since the last
        try:
            list(map(_call, (partial(store.step, steps), *taken)))
        finally:
            store.end_run()

    def _notes(self) -> Notes:
        if self._model is None:
            raise self._without_model()
        return Notes(self._model, self._names, self._optimizer)

    def save(self, directory: str | os.PathLike[str], extra: Any = None) -> int:
        """Writes the model and the optimizer to a directory, page by page.

        Once it has returned, the checkpoint outlasts a power failure; whatever happens before, the
        directory holds the one that it held. Buffers of the model are saved too, and what its
        modules' ``get_extra_state()`` returns; NumPy's numbers become Python's. Several ranks save
        one checkpoint: each the pages that it keeps, and rank 0 buffers, options and ``extra``.

        Args:
            directory: made if only the last part of its path is missing. All ranks see it.
            extra: anything that ``torch.load(weights_only=True)`` reads: the epoch, a scheduler's
                state dict.

        Returns:
            How many checkpoints have been saved there.

        Raises:
            TypeError: ``load`` could not read ``extra``, or what ``get_extra_state()`` of a module
                returned.
            ValueError: the directory cannot be written, or another process saves to it.
            RuntimeError: the disk is full or fails; or a backward pass has begun a step that
                ``optimizer.step()`` has not finished; or, where several ranks save, this is not the
                thread that trains.
        """
        notes, store, path = self._notes(), self.store, os.fspath(directory)
        if self._ranks is not None and self._hooks is not None:
            self._hooks.turns.check_trains("save()")
        progress = partial(_C.zerocache.progress, store)
        with self.alone(), shown(f"saving {path}", progress):
            return int(store.save(path, self._together(partial(notes.encode, extra))))

    def load(self, directory: str | os.PathLike[str]) -> Any:
        """Takes the checkpoint that ``save`` wrote, into a model and an optimizer of the same kind.
        Caps, pages and directories may be others, and so may the number of ranks that saved it. A
        cache without an optimizer takes the model of a checkpoint that has one.

        Returns:
            What was given to ``save`` as ``extra``.

        Raises:
            ValueError: there is none, or it is of another model or optimizer; nothing has changed.
            RuntimeError: it is damaged (names file, page and tensor). The cache then has to load
                another one before it is used again.
        """
        notes, store, path = self._together(self._notes), self.store, os.fspath(directory)
        progress = partial(_C.zerocache.progress, store)
        with self.alone("loaded"), shown(f"loading {path}", progress):
            return note.load(store, notes, path)

    def close(self) -> None:
        """Gives all parameters back to torch as ordinary memory, and everything else to the system.

        The optimizer's state is gone: take its ``state_dict()``, or ``save()``, before. Where the
        parameters do not fit into memory, they stay absent, and MemoryError is raised once all else
        is given back. They stay absent as well where ranks share them (``shard_parameters=True``).
        Where a disk cannot be read, RuntimeError is raised and the cache stays; closed once more,
        it is closed without what still cannot be read, which the error names.
        Closing again does nothing.
        """
        if self._store.closed:
            return
        with self.alone("closed"):
            self._close()

    def _close(self) -> None:
        for watcher in (self._lender, self._hooks, self._model_state, self._gradients):
            if watcher is not None:
                watcher.detach()
        size, free = self._store.parameter_bytes, available_bytes()
        spread = self._store.is_spread
        self._store.close(restore=size <= free)
        if size > free and not spread:
            raise MemoryError(
                f"the cache is closed; its parameters, {format_bytes(size)}, were not given back, "
                f"since this machine has {format_bytes(free)} of memory left"
            )

    def __enter__(self) -> ZeroCache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self.closed:
            self._store.leave_run(f"{type(error).__name__}: {error}")
        self.close()
