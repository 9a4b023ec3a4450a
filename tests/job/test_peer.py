"""A node's model: all nodes begin with equal values, each trains on its own data, and sketches match the models."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from thalweg.apps.received_config import ReceivedConfig
from thalweg.job.common.parties import bytes_of, round_config
from thalweg.job.graph.peer import peer_of
from thalweg.plan import Plan

DIGITS = {"job": {"graph": "ring", "clients": 3}, "model": {"name": "lenet"}, "data": {"name": "digits"}}


def test_nodes_begin_with_the_same_model_and_train_on_their_own_data() -> None:
    plan = Plan.of({**DIGITS, "training": {"local_steps": 2}})
    one, other = peer_of(plan, "node-1"), peer_of(plan, "node-3")
    assert one.checksum() == other.checksum()
    np.testing.assert_array_equal(one.sketch(), other.sketch())
    config = ReceivedConfig(round_config(plan, 1, plan.members).table())
    samples, _ = one.train(config)
    other.train(config)
    assert samples > 400
    assert len({peer.checksum() for peer in (one, other, peer_of(plan, "node-2"))}) == 3
    assert 0 <= cast("float", one.evaluate()["accuracy"]) <= 1


def test_a_sketch_follows_the_model_in_the_arena() -> None:
    peer = peer_of(Plan.of(DIGITS), "node-1")
    before = peer.sketch()
    np.asarray(peer.arena).view(np.float32)[:] *= 2
    np.testing.assert_allclose(peer.sketch(), 2 * before)
    assert peer_of(Plan.of(DIGITS).merge({"job.seed": 4}), "node-1").sketch() != pytest.approx(before)


def test_a_payload_is_moved_and_not_evaluated() -> None:
    plan = Plan.of({"job": {"graph": "ring"}, "model": {"name": "payload:4KiB"}})
    peer = peer_of(plan, "node-2")
    assert len(bytes_of(peer.arena)) == 4096
    assert peer.train(ReceivedConfig()) == (1, {})
    assert peer.evaluate() == {}
    assert np.linalg.norm(peer.sketch()) > 0
