"""The laws, as plain functions: properties assert them, and the mutant table sees them broken."""

from hypothesis import event

from fnroll.core import types as t
from fnroll.testing.certificate import certify
from fnroll.testing.rolling import run_oracle, run_work


def records_equal_the_oracle(model, forward, work, schedule, *, tolerance, tie=0.0, backend="eager"):
    """Tokens, masks, statuses equal; log-probs within `tolerance`; only ties below `tie` may split."""
    found = run_work(model, work, schedule, backend)
    for identity, oracle in run_oracle(forward, work).items():
        record = found[identity]
        prompt = len(work.prompts[identity[0]])
        if prompt >= work.max_length:
            assert (record.status, record.reason) == ("TRUNCATED", "prompt")
            continue
        certificate = certify(record, oracle)
        assert certificate.max_log_prob_error <= tolerance, (identity, certificate)
        if certificate.same_tokens:
            assert list(record.loss_mask) == [i >= prompt for i in range(len(record.tokens))]
            assert (record.status == "COMPLETED") == oracle.stopped
            assert (record.reason == "eos") == oracle.stopped
        else:
            assert certificate.margin is not None and certificate.margin < tie, (identity, certificate)
            event("a tie split", payload=certificate.margin)


def schedules_give_the_same_records(model, work, one, other, *, tolerance):
    """Two schedules, one work: bitwise equal, but for log-probs within `tolerance`."""
    left, right = run_work(model, work, one), run_work(model, work, other)
    assert left.keys() == right.keys()
    for identity, record in left.items():
        twin = right[identity]
        assert record.replace(log_probs=twin.log_probs) == twin, identity
        worst = max(abs(a - b) for a, b in zip(record.log_probs, twin.log_probs, strict=True))
        assert worst <= tolerance, (identity, worst)


def state_is_sound(state):
    """What holds of every state between steps."""
    records, rows, cap = state.records, state.rows, state.max_length
    held = [line for line in rows.record.tolist() if line >= 0]
    assert len(held) == len(set(held)), "two rows hold one record"
    status, queued = records.status.tolist(), state.queue.ticket[:-1] < t.Queue.NO_TICKET
    for line in range(state.num_records):
        assert (line in held) == (status[line] == t.RUNNING)
        assert bool(queued[line]) == (status[line] == t.PENDING)
    length = records.length
    assert int(length[-1]) == 0 and int(length.max()) <= cap
    beyond = (records.loss_mask & (records.log_probs.isnan() | records.log_probs.isinf()))[:-1]
    assert not beyond.any()
