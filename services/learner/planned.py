"""The learner of a planned run, in its initial state, to train again what that run trained."""

from __future__ import annotations

from pathlib import Path

from bus.events import RunPlanned
from services.agreement import Publishing
from services.config import SCRIPTED
from services.learner.config import LearnerConfig
from services.learner.protocol import Learner
from services.planned import config_of


def planned_learner(plan: RunPlanned, settings: LearnerConfig | None = None, model: Path | None = None) -> Learner:
    """With the plan's settings or with others, and with the plan's initial model or where a copy of it lies now.

    A scripted one takes no time. Raises ConfigError for a model that cannot be used.
    """
    config = config_of(plan)
    if config.model.path == SCRIPTED:
        from services.learner.scripted import ScriptedLearner

        return ScriptedLearner()
    from services.learner.making import make_model_learner

    chosen = settings or config.actor
    chosen = chosen if model is None else chosen.model_copy(update={"model": str(model)})
    return make_model_learner(chosen, plan.total_steps, Publishing.of(plan))


def planned_settings(plan: RunPlanned) -> LearnerConfig | None:
    """The plan's settings of the learner; None: it is scripted and has none."""
    config = config_of(plan)
    return None if config.model.path == SCRIPTED else config.actor
