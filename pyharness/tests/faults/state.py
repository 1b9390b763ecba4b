"""Mutants of the state: mark, rollback, reset, refusals, the cursor, the slots."""

# ruff: noqa: E501 (lines of the source as they are)
from __future__ import annotations

from pyharness.tests.faults.mutant import FAILED, H_OUT, NONDETERMINISTIC, STATE, Mutant

MODEL = "model/model.cpp"
_RESTORE = "  now_ = marked_;\n  position_ = marked_position_;"
_FULL = "  if (position_ > context_ - m)\n"
_REPLAY = (
    "const StepInput in{nullptr, n, marked_position_, context_, &slots_[marked_], &slots_[to], -1};"
)

# fmt: off
MUTANTS = (
    Mutant(
        "cursor-short", "after an M-row step the cursor is one short",
        MODEL,
        "  position_ += m;",
        "  position_ += m - (m > 1);",
        "mt2", "position is 64 after a step_m, expected 65", FAILED,
    ),
    Mutant(
        "cursor-back", "rollback leaves the cursor one too far",
        MODEL,
        "  position_ = marked_position_;\n",
        "  position_ = marked_position_ + 1;\n",
        "rb2", "position is 64 after a rollback, expected 63", FAILED,
    ),
    Mutant(
        "rollback-says-so", "rollback reports success and does nothing",
        "api.cpp",
        "model_of(dev).rollback(); });",
        "(void)model_of(dev); });",
        "rb4", "position is 67 after a rollback, expected 63", FAILED,
    ),
    Mutant(
        "rollback-cursor-only", "rollback moves the cursor alone",
        MODEL,
        _RESTORE,
        "  position_ = marked_position_;",
        "rb2", STATE, family="gdn",
    ),
    Mutant(
        "conv-not-restored", "rollback restores S and not the window of the convolution",
        MODEL,
        _RESTORE,
        "  std::swap(slots_[now_].s, slots_[marked_].s);\n  position_ = marked_position_;",
        "rb4", STATE, family="gdn",
    ),
    Mutant(
        "conv-not-restored-libs", "the same, held against the rollback of the old library",
        MODEL,
        _RESTORE,
        "  std::swap(slots_[now_].s, slots_[marked_].s);\n  position_ = marked_position_;",
        "libs-rb4", STATE, family="gdn",
    ),
    Mutant(
        "s-not-restored", "rollback restores the window of the convolution and not S",
        MODEL,
        _RESTORE,
        "  std::swap(slots_[now_].conv, slots_[marked_].conv);\n  position_ = marked_position_;",
        "rb4", STATE,
    ),
    Mutant(
        "other-layers-s", "rollback gives the first layer the S of the second one",
        MODEL,
        "  now_ = marked_;\n",
        "  now_ = marked_;\n  if (config_.count(VCUDA_LAYER_GDN) > 1)\n"
        "    std::memcpy(slots_[now_].s, slots_[now_].s + config_.s_size(), config_.s_size() * sizeof(float));\n",
        "rb2", STATE,
    ),
    Mutant(
        "second-rollback", "the second rollback of a model restores nothing but the cursor",
        MODEL,
        "  now_ = marked_;\n",
        "  if (++state_bytes_ % 4 != 2) now_ = marked_;\n",
        "rb4-twice", STATE,
    ),
    Mutant(
        "odd-m", "rollback of an odd M restores nothing but the cursor",
        MODEL,
        "  now_ = marked_;\n",
        "  if (kept_m_ % 2 != 1) now_ = marked_;\n",
        "rb8-schedule", H_OUT, family="gdn",
    ),
    Mutant(
        "mark-overwritten", "a step writes into the slot of the mark",
        MODEL,
        "while (slot == now_ || slot == marked_) ++slot;",
        "while (slot == now_) ++slot;",
        "rb2-changing", STATE,
    ),
    Mutant(
        "second-mark-ignored", "a mark does not replace the one before",
        MODEL,
        "  marked_ = now_;\n  marked_position_ = position_;",
        "  if (marked_ < 0) marked_ = now_, marked_position_ = position_;",
        "rb4-after-rows", "after a rollback, expected", FAILED,
    ),
    Mutant(
        "mark-lost", "a step that is refused forgets the mark",
        MODEL,
        '      fail(VCUDA_E_ARGUMENT, "token %d is %d, must be 0 to %d", i, tokens[i], config_.vocab - 1);',
        '      marked_ = -1, fail(VCUDA_E_ARGUMENT, "token %d is %d, must be 0 to %d", i, tokens[i], config_.vocab - 1);',
        "rb4-refused", "vcuda_dev_model_rollback: VCUDA_E_NO_MARK", FAILED,
    ),
    Mutant(
        "refusal-changes-state", "a full context is refused after the state was changed",
        MODEL,
        "  if (position_ > context_ - m)\n",
        "  if (position_ > context_ - m) now_ = free_slot();\n  if (position_ > context_ - m)\n",
        "mt4-refused", STATE, family="gdn",
    ),
    Mutant(
        "refusal-clears", "M over mmax is refused after the window of the convolution was cleared",
        MODEL,
        "  if (m < 2 || m > mmax_)\n",
        "  if (m > mmax_) backend_.zero(slots_[now_].conv, config_.conv_size() * sizeof(float));\n"
        "  if (m < 2 || m > mmax_)\n",
        "mt4-refused", H_OUT, family="gdn",
    ),
    Mutant(
        "no-refusal", "a token outside the vocabulary is read",
        MODEL,
        "tokens[i] >= config_.vocab)",
        "tokens[i] > config_.vocab)",
        "m1-refused", "was not refused", FAILED,
    ),
    Mutant(
        "rollback-twice", "a mark can be used twice",
        MODEL,
        _RESTORE + "\n  marked_ = -1;",
        _RESTORE,
        "rb2-refused", "vcuda_dev_model_rollback was not refused", FAILED,
    ),
    Mutant(
        "reset-keeps-mark", "reset leaves the mark",
        MODEL,
        "  marked_ = -1;\n  backend_.zero(slots_[0].s",
        "  backend_.zero(slots_[0].s",
        "rb2-reset", "vcuda_dev_model_rollback was not refused", FAILED,
    ),
    Mutant(
        "reset-other-slot", "reset clears a slot that is not the state",
        MODEL,
        "  now_ = 0;\n  marked_ = -1;",
        "  marked_ = -1;",
        "mt5-reset", STATE, family="gdn",
    ),
    Mutant(
        "uninitialised", "the window of the convolution is read before it was ever written",
        MODEL,
        "  backend_.zero(slots_[0].conv, n * config_.conv_size() * sizeof(float));\n",
        "",
        "m1", H_OUT, NONDETERMINISTIC,
    ),
    Mutant(
        "step-not-taken-over", "an M-row step leaves the recurrence where it was",
        MODEL,
        "  now_ = to;\n  position_ += m;",
        "  if (m == 1) now_ = to;\n  position_ += m;",
        "mt3", H_OUT, family="gdn",
    ),
    Mutant(
        "keeps-one-more", "rollback_to replays one row too many",
        MODEL,
        _REPLAY,
        _REPLAY.replace("nullptr, n,", "nullptr, n + 1,"),
        "rb4-keep1", STATE,
    ),
    Mutant(
        "keeps-from-now", "rollback_to replays on the state after the step",
        MODEL,
        _REPLAY,
        _REPLAY.replace("&slots_[marked_]", "&slots_[now_]"),
        "rb8-keep7", STATE,
    ),
    Mutant(
        "keeps-all", "rollback_to moves the cursor and keeps the state of all rows",
        MODEL,
        "    now_ = to;\n    position_ = marked_position_ + n;",
        "    position_ = marked_position_ + n;",
        "rb4-keep3", STATE, family="gdn",
    ),
    Mutant(
        "kept-of-layer-0", "rollback_to replays every layer with the rows of the first one",
        MODEL,
        "kept_[l.index]",
        "kept_[0]",
        "rb2-keep1", STATE, family="gdn",
    ),
    Mutant(
        "keeps-past-a-step", "rollback_to is not refused though a single step lies between",
        MODEL,
        "  if (marked_ >= 0) kept_m_ = keep ? m : -1;",
        "  if (keep) kept_m_ = m;",
        "rb4-keep-refused", "vcuda_dev_model_rollback_to was not refused", FAILED,
    ),
    Mutant(
        "keeps-all-but-one", "rollback_to(M - 1) moves the cursor and keeps the state of all rows",
        MODEL,
        "  if (n < kept_m_) {",
        "  if (n == kept_m_ - 1) position_ = marked_position_ + n;\n  if (n < kept_m_ - 1) {",
        "rb4-keep3", STATE, family="gdn",
    ),
    Mutant(
        "keeps-second-rows", "rollback_to replays the second M-row step since the mark",
        MODEL,
        "marked_ >= 0 && kept_m_ == 0 && m > 1;",
        "marked_ >= 0 && kept_m_ >= 0 && m > 1;",
        "rb4-keep-refused", "vcuda_dev_model_rollback_to was not refused", FAILED,
    ),
    Mutant(
        "reset-last-layer", "a reset of a model in use leaves the S of its last layer",
        MODEL,
        "  backend_.zero(slots_[0].s, n * config_.s_size() * sizeof(float));",
        "  backend_.zero(slots_[0].s, (position_ ? n - 1 : n) * config_.s_size() * sizeof(float));",
        "mt5-reset", STATE, family="gdn",
    ),
    Mutant(
        "context-one-more", "an M-row step may end one position past the context",
        MODEL,
        _FULL,
        "  if (position_ > context_ - m + (m > 1))\n",
        "mt4-refused", "vcuda_dev_model_step_m (4 tokens, the last one", FAILED,
    ),
    Mutant(
        "context-one-less", "an M-row step may not fill the context",
        MODEL,
        _FULL,
        "  if (position_ > context_ - m - (m > 1))\n",
        "mt4-refused", "VCUDA_E_CONTEXT_FULL", FAILED,
    ),
    Mutant(
        "checks-last-token", "only the token of the last of M rows is checked",
        MODEL,
        "  for (int i = 0; i < m; ++i)\n    if (tokens[i] < 0",
        "  for (int i = m - 1; i < m; ++i)\n    if (tokens[i] < 0",
        # accepted, or undone for a NaN: what lies behind the embedding decides
        "mt4-refused", "vcuda_dev_model_step_m", FAILED,
    ),
)
# fmt: on
