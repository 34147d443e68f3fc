"""Who decided, and what shadows would have done, as summary.json and `policy status --json` have it."""

from __future__ import annotations

from services.monitor.cycle_model import Answer
from services.monitor.policy_history import Chosen, PolicyHistory, Refusal, Shadow, Stretch
from services.monitor.shadows import Comparison, Difference, ShadowComparisons


def policy_numbers(history: PolicyHistory, shadows: ShadowComparisons) -> dict[str, object]:
    """All that is known of a run's policies. Seconds are null where they cannot be estimated."""
    watching = {id(shadow): shadow for shadow in (*history.past_shadows, *history.shadows.values())}
    return {
        "policies": [_stretch(stretch) for stretch in history.stretches],
        "policies_left_out": history.num_stretches - len(history.stretches),
        "shadows": [_shadow(shadow) for shadow in sorted(watching.values(), key=lambda shadow: shadow.position)],
        "shadow_comparisons": [_comparison(comparison, history) for comparison in shadows.all.values()],
        "shadow_model_error_seconds": shadows.model_error_s,
        "policy_requests_refused": [_refusal(refusal) for refusal in history.refusals],
    }


def _chosen(chosen: Chosen) -> dict[str, object]:
    return {"name": chosen.name, "params": dict(chosen.params), "digest": chosen.digest or None, "words": str(chosen)}


def _stretch(stretch: Stretch) -> dict[str, object]:
    return {
        **_chosen(stretch.chosen),
        "because": stretch.because,
        "request": stretch.request or None,
        "position": stretch.position,
        "first_boundary": stretch.boundary,
        "until": stretch.until,
        "restarts": stretch.restarts,
        "losses": stretch.losses.count,
        "last_error": stretch.losses.error or None,
    }


def _shadow(shadow: Shadow) -> dict[str, object]:
    return {
        "label": shadow.label,
        **_chosen(shadow.chosen),
        "request": shadow.request or None,
        "position": shadow.position,
        "first_boundary": shadow.boundary,
        "until": shadow.until,
        "ended": shadow.ended,
        "restarts": shadow.restarts,
        "losses": shadow.losses.count,
        "last_error": shadow.losses.error or None,
    }


def _comparison(comparison: Comparison, history: PolicyHistory) -> dict[str, object]:
    active = history.active
    return {
        "label": comparison.label,
        "shadow": str(comparison.shadow),
        "against": str(comparison.against),
        "is_current": active is not None
        and active.chosen == comparison.against
        and any(shadow.label == comparison.label and shadow.chosen == comparison.shadow for shadow in history.shadows.values()),
        "boundaries": comparison.compared,
        "agree": comparison.agree,
        "differ": comparison.differ,
        "would_lend_instead": comparison.lend_instead,
        "would_keep_instead": comparison.keep_instead,
        "estimated": comparison.estimated,
        "saved_seconds": comparison.saved_or_unknown_s,
        "newest_differences": [_difference(difference) for difference in comparison.newest],
    }


def _difference(difference: Difference) -> dict[str, object]:
    return {
        "boundary": difference.boundary,
        "position": difference.position,
        "active": _answer(difference.active),
        "shadow": _answer(difference.shadow),
        "saved_seconds": difference.saved_s,
        "unknown": difference.unknown or None,
    }


def _answer(answer: Answer) -> dict[str, object]:
    return {"lends": answer.lends, "give_back_at": answer.give_back_at if answer.lends else None, "words": str(answer)}


def _refusal(refusal: Refusal) -> dict[str, object]:
    return {
        "request": refusal.request,
        "position": refusal.position,
        "action": refusal.action,
        "name": refusal.name,
        "label": refusal.label,
        "stage": refusal.stage,
        "detail": refusal.detail,
        "words": str(refusal),
    }
