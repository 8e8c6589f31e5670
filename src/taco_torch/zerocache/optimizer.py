"""The optimizer that a cache gives back: torch's in every call, with state that moves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from taco_torch.zerocache import scaling
from taco_torch.zerocache.averaging import AveragedGradients
from taco_torch.zerocache.clipping import EUCLIDEAN, KeptGradients
from taco_torch.zerocache.optimizer_state import StateDicts
from taco_torch.zerocache.ranks import Ranks
from taco_torch.zerocache.retired import retire
from taco_torch.zerocache.rules import Rule, check_group
from taco_torch.zerocache.state import State

if TYPE_CHECKING:
    from taco_torch.zerocache.buckets import BucketGradients
    from taco_torch.zerocache.cache import ZeroCache
    from taco_torch.zerocache.mean_gradients import MeanGradients

# Where torch keeps the hooks that a program registered on an optimizer.
HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class CachedOptimizer(StateDicts):
    """Steps parameters that a ZeroCache holds. Made by ``ZeroCache.wrap``.

    It shares the ``param_groups`` of the optimizer that was given to wrap: whoever changes a
    learning rate there, a scheduler made before or after, changes it here. ``state_dict()`` and
    ``load_state_dict()`` have torch's format, so checkpoints move to and from plain torch; a
    bfloat16 parameter has an entry "master" more, the float32 values that it is rounded from.
    """

    def __init__(
        self,
        cache: ZeroCache,
        inner: torch.optim.Optimizer,
        rule: Rule,
        names: Mapping[nn.Parameter, str],
        trained: Set[nn.Parameter],
        ranks: Ranks | None = None,
    ) -> None:
        self._cache = cache
        self._ranks = ranks  # that share the state; none: it is all here
        # State of all ranks, on one, from consolidate_state_dict() until the next step.
        self._gathered: dict[nn.Parameter, dict[str, Any]] | None = None
        self.rule = rule
        self._names = names
        self._trained = trained
        self._kinds = rule.kinds(inner.param_groups)
        self.steps: dict[nn.Parameter, int] = {}  # that each has taken
        # Numbers of the step that a backward pass is taking; None: step() alone takes it.
        self._early: dict[nn.Parameter, int] | None = None
        self._norms: dict[nn.Parameter, Tensor] = {}  # of gradients that it has used
        # Ranks that share the state have begun a step in a backward pass that is not at its end:
        # the same on all of them, whatever each has taken. And why this one has not taken all.
        self._agreed = False
        self._failure: Exception | None = None
        self._lost = 0  # how often ranks had parted by then
        self._groups: dict[nn.Parameter, dict[str, Any]] = {}  # as that step found them
        # Gradients that have left memory for later; None: they stay there, or are stepped at once.
        self.kept: KeptGradients | AveragedGradients | None = None
        # Has ranks average gradients; none: they are final as they are.
        self.means: BucketGradients | MeanGradients | None = None
        self._sealed = False
        self._state = State(self, cache, ranks)
        self._plain: dict[nn.Parameter, dict[str, Any]] | None = None  # while state_dict() is made
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups
        for hooks in HOOKS:
            setattr(self, hooks, getattr(inner, hooks))
        self._sealed = True
        retire(inner)
        self._inner = weakref.ref(inner)

    def __reduce_ex__(self, _: Any) -> Any:
        """Refused: the state is in the cache, of which there is one."""
        raise TypeError(
            "the optimizer of a ZeroCache cannot be pickled or copied: its state_dict() has copies "
            "of its state, and cache.save() writes it to disk"
        )

    @property
    def state(self) -> Any:
        """As torch's, by parameter: copies. What is changed of them in place, or set, is changed
        in the cache. ``del optimizer.state[parameter]`` begins it anew."""
        return self._state if self._plain is None else self._plain

    @state.setter
    def state(self, _: object) -> None:
        if self._sealed:  # torch's constructor sets an empty one
            raise AttributeError(
                "the state is in the cache and cannot be replaced: load_state_dict() sets it, and "
                "one whose 'state' is empty begins it anew"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: a cache knows all parameters that are trained when it wraps them."""
        if self._sealed:
            raise RuntimeError(
                "parameters cannot be added after ZeroCache.wrap(): give the optimizer all groups "
                "before (a parameter without gradients costs nothing)"
            )
        super().add_param_group(param_group)

    def take_gradients(self, gradients: str) -> None:
        """Says how final gradients are used. They stay "in memory"; or take_gradient() is
        called from now on: they are "stepped", once ranks that share parameters have averaged
        them, and step() finishes what is left; "kept" on pages until step(); or "averaged"."""
        self._early = {} if gradients == "stepped" else None
        self.kept = None
        if gradients == "kept":
            self.kept = KeptGradients(self._cache, self._names)
        elif gradients == "averaged":
            self.kept = AveragedGradients(self._cache, self._names)
        if gradients == "in memory":
            scaling.hide_from_scalers(self)
        else:
            scaling.show_to_scalers(self)

    @torch.no_grad()
    def take_gradient(self, parameter: nn.Parameter, more: bool = False) -> None:
        """Its gradient is final, or there are ``more`` passes that add to it on pages; it leaves:
        to be used before long, or to be kept on pages."""
        grows = self.kept is not None and self.kept.grows(parameter)
        if self._is_taken(parameter) and not grows:
            raise self._second_gradient(parameter)
        gradient = parameter.grad
        if gradient is None:
            return
        with self._cache.alone():
            if self.kept is not None:
                self.kept.keep(parameter, gradient, more)
            else:
                self._step_early(parameter, gradient)
        parameter.grad = None

    def share_final(self, parameters: Iterable[Tensor]) -> None:
        """All ranks that share the state have taken these, or have failed to: pages that they have
        stepped may travel."""
        if self._ranks is not None:
            self._cache.store.share_final(list(parameters))

    def forget_when_used(self, lent: Tensor) -> None:
        """Memory that gradients were taken in: the system has it once the last of them is used."""
        self._cache.store.forget_when_used(lent)

    @torch.no_grad()
    def take_rest(self) -> None:
        """Gradients that backward passes have left in memory join those that ranks average, and
        those on pages that earlier passes have left for more."""
        if self.kept is None:
            return
        self.kept.end_pass()
        for parameter in self._names:
            if parameter in self._trained and (self.kept.takes_all or self.kept.grows(parameter)):
                self.take_gradient(parameter)

    def note_failure(self, error: Exception) -> None:
        """This rank has not taken a gradient that others have. The others hear of it where the pass
        ends; or, if an exception ends that on all ranks, where something else ends the step."""
        if self._agreed:
            self._failure = error

    def end_pass(self) -> None:
        """A backward pass that has taken gradients is over. Ranks that share the state come here
        together; where one has failed, which its caller raises, the others raise that here."""
        failure = self._failure
        self._agreed, self._failure = False, None
        if self.kept is not None:
            self.kept.end_pass()
        elif failure is not None:
            self._tell(partial(self._cache.store.finish_gradients, _described(failure)))
        elif self._early or self._ranks is not None:
            self._cache.store.finish_gradients()

    def end_interrupted(self) -> None:
        """Ends the step of a pass that an exception has ended on all ranks: what they had averaged
        by then is stepped, unless one has failed to take it, which all of them raise."""
        if self.means is not None:
            self.means.leave_pass()
        if not self._agreed:
            return
        failure = self._failure
        self.end_pass()
        if failure is not None:
            raise failure

    def agree_on_early(self, parameters: Iterable[nn.Parameter]) -> None:
        """Before ranks that share the state step these in a backward pass: raises on all of them
        where one cannot, or would step otherwise (MismatchError); nothing has changed then."""
        if self._ranks is None:
            return
        try:
            self._ranks.check_step()
            steps = [(parameter, None, self._constants(parameter)) for parameter in parameters]
        except Exception as error:
            self._tell(partial(self._cache.store.refuse_step, _described(error)))
            raise
        self._cache.store.agree_on_steps(steps)
        self._agreed = True

    @staticmethod
    def _tell(others: Callable[[], object]) -> None:
        """Tells others of what this rank raises next; they raise it, too."""
        with suppress(Exception):
            others()

    def _is_taken(self, parameter: nn.Parameter) -> bool:
        """Whether take_gradient() has been called for it since the last step."""
        self._forget_lost()
        taken = self.kept if self.kept is not None else self._early
        return parameter in (taken or ())

    def _step_early(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        assert self._early is not None
        constants = self._constants(parameter)
        self._early[parameter] = self.steps.get(parameter, 0) + 1
        if gradient.layout == torch.strided and not self._cache.store.is_spread:
            self._norms[parameter] = torch.linalg.vector_norm(gradient, EUCLIDEAN)
        try:
            self._cache.store.step_early(parameter, gradient, constants)
        except (NotImplementedError, TypeError, ValueError):  # before anything has changed
            del self._early[parameter]
            raise

    def _constants(self, parameter: nn.Parameter) -> Any:
        """The constants of the parameter's next step, which a backward pass takes."""
        if not self._early:
            self._groups = {p: group for group in self.param_groups for p in group["params"]}
        group = self._groups[parameter]
        check_group(self.rule, group)
        self._check_kinds(group)
        return self.rule.constants(group, self.steps.get(parameter, 0) + 1, parameter, 1.0)

    def check_not_taken(self, parameter: nn.Parameter) -> None:
        """Raises RuntimeError where an earlier pass has taken its gradient, and none may follow."""
        if self._is_taken(parameter):
            raise self._second_gradient(parameter)

    def _second_gradient(self, parameter: nn.Parameter) -> RuntimeError:
        done = "been stepped" if self.kept is None else "had its gradient taken away"
        return RuntimeError(
            f"parameter '{self._names[parameter]}' has {done} in an earlier backward pass, "
            f"or an earlier part of this one, and now has another gradient: where several backward "
            f"passes make one step, run all but the last inside 'with cache.accumulate():' "
            f"(checkpoints need use_reentrant=False); else call optimizer.step() or "
            f"optimizer.zero_grad() after each"
        )

    def has_stepped_early(self, parameter: nn.Parameter) -> bool:
        """Whether the backward pass under way has stepped it, or is about to."""
        self._forget_lost()
        return parameter in (self._early or ())

    def check_has_gradient(self, parameter: nn.Parameter) -> None:
        """Raises RuntimeError where the backward pass has used the gradient, or taken it away."""
        if self.kept is not None and parameter in self.kept:
            raise RuntimeError(
                f"the gradient of parameter '{self._names[parameter]}' is kept by the cache: to "
                f"clip gradients by their norm, call cache.clip_grad_norm_(max_norm)"
            )
        if self._early and parameter in self._early:
            raise RuntimeError(
                f"the gradient of parameter '{self._names[parameter]}' was used in the backward "
                f"pass: to clip gradients, call ZeroCache.wrap(..., step_in_backward=True, "
                f"clipping=True), and cache.clip_grad_norm_(max_norm) before optimizer.step()"
            )

    def norm_of_used(self, parameter: nn.Parameter) -> Tensor | None:
        """The Euclidean norm of the gradient that the backward pass has used; None: it has used
        none, or ranks know parts of it alone."""
        return self._norms.get(parameter) if parameter in (self._early or ()) else None

    def clip_on_pages(
        self, given: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
    ) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ was called with these: as clip_grad_norm_() of the cache,
        which clips all gradients of the model and no others.

        Raises RuntimeError where these are not all that have gradients, or more.
        """
        assert self.kept is not None
        self.take_rest()
        own = [each for each in self._names if each in self.kept or each.grad is not None]
        others = [each for each in given if each not in self._names and each.grad is not None]
        taken = set(given)
        left_out = [self._names[each] for each in own if each not in taken]
        if others or left_out:
            what = (
                f"parameter '{left_out[0]}' was left out" if left_out else "others are among them"
            )
            raise RuntimeError(
                f"clip_grad_norm_() of some parameters, whose gradients the cache keeps on pages: "
                f"{what}, and the cache clips by the norm of all gradients of its model. Give it "
                f"model.parameters(), or call cache.clip_grad_norm_(max_norm)"
            )
        return self.kept.clip(max_norm, norm_type, error_if_nonfinite)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        self._check_scaling()  # GradScaler asks for it before it steps
        return False

    def _check_scaling(self) -> None:
        if self._early is not None:
            raise RuntimeError(
                "GradScaler cannot be used with step_in_backward=True: gradients are used before "
                "it has unscaled them, so parameters have been stepped by scaled ones; call "
                "ZeroCache.wrap(..., step_in_backward=True, clipping=True), which steps them in "
                "optimizer.step()"
            )
        if self.kept is not None and not scaling.can_be_asked():
            raise RuntimeError(
                f"the GradScaler of torch {torch.__version__} does not find gradients that a cache "
                f"keeps: leave {self.kept.option}=False"
            )

    @torch.no_grad()
    def unscale_gradients(self, factor: float) -> bool | None:
        """For GradScaler: gradients that are not in memory are multiplied by ``factor``, once.
        Whether one of them is infinite or NaN, on any rank; None: there are none.

        Raises:
            RuntimeError: they have been used, or lost, or another rank has failed.
            MismatchError: ranks have other gradients, or another factor; on all ranks.
        """
        self._check_scaling()
        if self.kept is None:
            return None
        self._cache.check_backward()
        self.kept.check_whole()
        self.take_rest()
        return self.kept.unscale(factor)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. Where a backward pass has begun a step, parameters that were stepped in part
        are stepped whole; gradients of those that were not are dropped, as are those on pages."""
        super().zero_grad(set_to_none)
        self.end_interrupted()
        if self._early is not None:
            self._cache.left_backward()
            self._forget_lost()
        if self.kept:
            self.kept.drop()
            self._cache.store.end_run()
        if self._early:
            by_name = {name: parameter for parameter, name in self._names.items()}
            for name in self._cache.store.drop_steps():
                self.steps[by_name[name]] = self._early[by_name[name]]
            self._early = {}
            self._norms.clear()
            self._cache.store.end_run()

    def _check_kinds(self, group: dict[str, Any]) -> None:
        missing = set(self.rule.kinds([group])) - set(self._kinds)
        if missing:
            raise ValueError(
                f"{self.rule.name}(momentum={group['momentum']!r}) keeps a {missing.pop()}, and "
                f"momentum was 0 at ZeroCache.wrap(): wrap an optimizer whose momentum is above 0 "
                f"(or keep the scheduler from setting it: OneCycleLR(cycle_momentum=False))"
            )

    def _next_steps(
        self,
    ) -> tuple[list[tuple[Tensor, Tensor | None, Any]], dict[nn.Parameter, int]]:
        """The updates that step() is about to make, and the numbers of these steps."""
        if self._ranks is not None:
            self._ranks.check_step()
        self._cache.check_backward()
        if self.kept is not None:
            self.kept.check_whole()
        self._forget_lost()
        self.take_rest()
        steps: list[tuple[Tensor, Tensor | None, Any]] = []
        numbers: dict[nn.Parameter, int] = {}
        for group in self.param_groups:
            check_group(self.rule, group)
            self._check_kinds(group)
            made: dict[Any, Any] = {}
            for parameter, gradient in self._gradients_of(group):
                number = numbers[parameter] = self.steps.get(parameter, 0) + 1
                factor = self.kept.factor(parameter) if self.kept is not None else 1.0
                key = number, factor, self.rule.differs(parameter)
                if key not in made:
                    made[key] = self.rule.constants(group, number, parameter, factor)
                steps.append((parameter, gradient, made[key]))
        return steps, numbers

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters that have gradients, as torch's: returns what ``closure``
        returns, which computes the loss anew. With ``step_in_backward`` most of them have been
        stepped by now.

        Raises:
            RuntimeError: the cache is closed, or a page could not be had (the disk failed). Then
                parameters are of two steps, and the cache asks for a checkpoint to be loaded.
            MismatchError: ranks were about to step other parameters, or otherwise; names the first
                of them. Nothing has changed.
            PeerLostError: a rank has died.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._cache.alone("stepped"):
            self._take_step()
        return loss

    def _take_step(self) -> None:
        self.end_interrupted()
        if self.means is not None:
            self.means.average_rest()
        try:
            steps, numbers = self._next_steps()
        except Exception as error:
            if self._ranks is not None:
                self._tell(partial(self._cache.store.refuse_step, _described(error)))
                self._cache.store.end_run()
            raise
        self._gathered = None
        taken = {**self.steps, **(self._early or {}), **numbers}
        early: dict[nn.Parameter, int] | None = None if self._early is None else {}
        done: list[Callable[[], object]] = [
            partial(setattr, self, "steps", taken),
            partial(setattr, self, "_early", early),
            self._norms.clear,
        ]
        if self.kept is not None:
            done.append(self.kept.clear)
        self._cache.run_step(steps, *done)
        if (inner := self._inner()) is not None:  # for a scheduler that has it
            inner._opt_called = True  # type: ignore[attr-defined]

    def _gradients_of(
        self, group: Mapping[str, Any]
    ) -> Iterator[tuple[nn.Parameter, Tensor | None]]:
        """The parameters that have a gradient; None: it is on pages."""
        for parameter in group["params"]:
            if parameter.grad is None or parameter.numel() == 0:
                if self.kept is not None and parameter in self.kept:
                    yield parameter, None
                continue
            if parameter not in self._trained:
                name = self._names.get(parameter)
                if name is None:
                    raise RuntimeError(
                        f"a parameter of shape {tuple(parameter.shape)} was added to a group after "
                        f"ZeroCache.wrap(), and cannot be stepped: give the optimizer all "
                        f"parameters before"
                    )
                raise RuntimeError(
                    f"parameter '{name}' was frozen at ZeroCache.wrap() and has no state to "
                    f"step it with, which takes room that the caps did not have, an optimizer "
                    f"other than Adafactor, and a dtype that is trained: give the cache more, or "
                    f"wrap it with requires_grad=True, and freeze it after that"
                )
            if self._is_taken(parameter):
                raise self._second_gradient(parameter)
            yield parameter, parameter.grad
