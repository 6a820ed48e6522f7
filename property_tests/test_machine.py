"""The state as a machine: whatever steps are taken in whatever order, it stays sound."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fnroll.core import queue as queues
from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.pool import move
from fnroll.core.types import Queue, Rows
from property_tests.laws import state_is_sound
from tests.core.helpers import enqueue, toy_state

LINES = 5


class QueueMachine(RuleBasedStateMachine):
    """Tickets behave as a list does: append at the back, insert at the front, take from the front."""

    def __init__(self):
        super().__init__()
        none = torch.full((LINES + 1,), Queue.NO_TICKET)
        self.queue = Queue(ticket=none, front=torch.tensor(0), back=torch.tensor(0))
        self.list = []

    def outside(self):
        return [line for line in range(LINES) if line not in self.list]

    @rule(data=st.data())
    def push_back(self, data):
        lines = self.draw(data)
        self.queue, self.list = queues.push_back(self.queue, torch.tensor([*lines, LINES])), self.list + lines

    @rule(data=st.data())
    def push_front(self, data):
        lines = self.draw(data)
        self.queue, self.list = (
            queues.push_front(self.queue, torch.tensor([*lines, LINES])),
            lines + self.list,
        )

    def draw(self, data):
        outside = self.outside()
        return data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else []

    @rule(count=st.integers(1, LINES + 2))
    def take(self, count):
        record, exists = queues.peek(self.queue, count)
        taken = record[exists].tolist()
        assert taken == self.list[:count]
        self.queue, self.list = queues.drop(self.queue, torch.tensor([*taken, LINES])), self.list[count:]

    @invariant()
    def first_is_first(self):
        record, exists = queues.peek(self.queue, LINES)
        assert record[exists].tolist() == self.list


class StateMachine(RuleBasedStateMachine):
    """Every record is in exactly one place, lengths and turns only grow, masks imply log-probs."""

    @initialize(rows=st.integers(1, 3))
    def start(self, rows):
        self.model, self.state = toy_state(prompts=((1,),), rows=rows, lines=LINES, max_length=12, limit=12)

    def lines(self, *status):
        return [i for i in range(LINES) if int(self.state.records.status[i]) in status]

    @rule(prompt=st.lists(st.integers(0, 12), min_size=1, max_size=6), room=st.integers(1, 6))
    def enqueue(self, prompt, room):
        free = self.lines(t.FREE, t.COMPLETED, t.TRUNCATED, t.FAILED)
        if free:
            self.state = enqueue(self.state, free[:1], [prompt], min(len(prompt) + room, 12))

    @rule(static=st.booleans())
    def admit(self, static):
        self.state, _ = steps.admit(self.state, static=static)
        rows = torch.arange(self.state.num_rows)
        self.state = steps.prefill(
            self.model.params, self.state, rows, model=self.model.fn, width=12, window=12
        )
        running = self.state.rows.record != Rows.IDLE
        line = self.state.rows.record[running]
        assert torch.equal(self.state.rows.cached[running], self.state.records.length[line] - 1)

    @rule()
    def pack(self):
        """Move the record of the last busy row to the first idle one before it."""
        busy = (self.state.rows.record != Rows.IDLE).tolist()
        idle = [row for row, taken in enumerate(busy) if not taken and True in busy[row:]]
        if idle:
            last = max(row for row, taken in enumerate(busy) if taken)
            self.state = move(self.state, torch.tensor([last]), torch.tensor(idle[:1]), window=12)

    @rule(multi_turn=st.booleans(), least=st.booleans())
    def decode(self, multi_turn, least):
        before = self.state.records.length.clone()
        busy = (self.state.rows.record != Rows.IDLE).nonzero()
        height = int(busy[-1]) + 1 if least and len(busy) else None
        self.state, _ = steps.decode_step(
            self.model.params,
            self.state,
            model=self.model.fn,
            window=12,
            height=height,
            multi_turn=multi_turn,
        )
        grown = self.state.records.length - before
        assert ((grown == 0) | (grown == 1)).all()

    @precondition(lambda self: self.lines(t.WAITING))
    @rule(ids=st.lists(st.integers(0, 12), min_size=1, max_size=5))
    def append_tool(self, ids):
        line = torch.tensor(self.lines(t.WAITING)[:1])
        self.state = steps.append_tool(
            self.state, line, torch.tensor([ids]), torch.tensor([len(ids)]), torch.tensor([12])
        )

    @rule(line=st.integers(0, LINES - 1))
    def finish(self, line):
        if line in self.lines(t.PENDING, t.RUNNING, t.WAITING):
            self.state = steps.finish(
                self.state, torch.tensor([line]), torch.tensor([t.FAILED]), torch.tensor([t.ABORTED])
            )

    @invariant()
    def sound(self):
        if hasattr(self, "state"):
            state_is_sound(self.state)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=30, stateful_step_count=25)
TestState = StateMachine.TestCase
TestState.settings = settings(max_examples=30, stateful_step_count=25)
