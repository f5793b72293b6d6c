"""Drafts grown from the likeliest guess on, as large as is worth its cost."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from ..matching import Draft, Verdict
from .acceptance import Acceptance
from .pass_cost import PassCost
from .sources import CONTEXT, Context, CostlySource, Source, State
from .steps import Waiting, together

# A text may suit its drafts less than those before: as many right guesses as all that was learned is worth, and how
# much of that counts after each token.
TRUST, FADE = 4.0, 0.95
UNLIKELY = 0.02  # a guess below is never worth a place: a pass of one more token costs more than that everywhere


@dataclass
class Node:
    """A guess, or the end of the text.

    Attributes
    ----------
    token, parent
        And the number of the node before it, -1 for the text.
    share, depth
        Probability that the model writes all tokens up to this one, and their number.
    states
        Of the sources that proposed it, and None for others.
    kinds
        Of each guess for what follows, by token; None until they are asked for.
    after
        Numbers of the nodes that follow, by token.
    """

    token: int
    parent: int
    share: float
    depth: int
    states: list[State]
    kinds: dict[int, list[Hashable]] | None = None
    after: dict[int, int] = field(default_factory=dict)


class GrownDrafter:
    """Grow a tree of the likeliest guesses of several sources, and verify as much of it as is worth its cost.

    Where sources propose the same token, it is one node, as in RASD (Quan et al., 2025); the shares of guesses that
    were right (:class:`Acceptance`) and the measured cost of a pass (:class:`PassCost`) decide how many nodes the draft
    has, and whether it has any. So a text of which nothing can be guessed is decoded plainly.

    Parameters
    ----------
    sources
        Of guesses; the first that proposes a token is asked first.
    acceptance, cost
        What is learned from one text for the next.
    branches
        Whether the draft may be a tree; otherwise it follows the likeliest guess only.
    again
        Says whether what was accepted has to be read once more; by default it has not.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        acceptance: Acceptance,
        cost: PassCost,
        branches: bool = True,
        again: Callable[[], bool] = bool,
    ) -> None:
        self.again = again
        self.sources, self.acceptance, self.cost, self.branches = sources, acceptance, cost, branches
        self._forget()
        self._end: Context = ()
        self._wanted = 0  # nodes that the draft would have, if this text were like those before
        self._right = self._expected = TRUST  # guesses for this text that were right, and that should have been

    def _forget(self) -> None:
        """Nothing is drafted; what a text is given without a draft, as after a wait, says nothing of older guesses."""
        self._root, self._nodes, self._draft = Node(0, -1, 1.0, 0, []), list[Node](), Draft(())

    def begin(self, tokens: Sequence[int] = ()) -> None:
        """A text begins with these tokens."""
        for source in self.sources:
            source.begin(tokens)
        self._end = tuple(tokens[-CONTEXT:])
        self._right = self._expected = TRUST

    def propose(self, most: int) -> Draft:
        """The draft of at most `most` tokens that is worth most."""
        return together([self.drafting(most)])[0]

    def drafting(self, most: int) -> Waiting[Draft]:
        """The same, of one text of several: wait for the steps of a source that are taken for all of them."""
        asked = [most > 0 or not isinstance(source, CostlySource) for source in self.sources]
        states = [source.root() if ask else None for ask, source in zip(asked, self.sources, strict=True)]
        self._root = Node(0, -1, 1.0, 0, states)
        self._nodes = yield from self._grown(most)
        trust = min(1.0, self._right / self._expected)
        again, shares = self.again(), [node.share for node in self._nodes]
        trusted = [trust**node.depth * node.share for node in self._nodes]
        self._wanted = self.cost.nodes(shares, again)
        nodes = self._nodes[: self.cost.nodes(trusted, again)]
        self._draft = Draft(tuple(n.token for n in nodes), tuple(n.parent for n in nodes))
        return self._draft

    def _grown(self, most: int) -> Waiting[list[Node]]:
        """The `most` likeliest nodes, each behind its parent, without those that can be in no draft that pays."""
        nodes: list[Node] = []
        waiting: list[tuple[float, int, Node]] = []
        order, accepted = 0, 0.0
        for guess in (yield from self._guesses(self._root, -1)):
            heapq.heappush(waiting, (-guess.share, order := order + 1, guess))
        while waiting and len(nodes) < most and self.cost.may_grow(len(nodes), most, accepted, -waiting[0][0]):
            node = heapq.heappop(waiting)[2]
            number = len(nodes)
            nodes.append(node)
            accepted += node.share
            (nodes[node.parent] if node.parent >= 0 else self._root).after[node.token] = number
            if not self.branches:
                waiting.clear()
            for guess in (yield from self._guesses(node, number)):
                heapq.heappush(waiting, (-guess.share, order := order + 1, guess))
        return nodes

    def _guesses(self, node: Node, number: int) -> Waiting[list[Node]]:
        """What may follow a node."""
        node.kinds = {}
        found: dict[int, list[State]] = {}
        for place, (source, state) in enumerate(zip(self.sources, node.states, strict=True)):
            if state is None or not self._is_worth(source, state, node, number):
                continue
            if isinstance(source, CostlySource):
                yield from source.asking(state)
            for token, kind, after in source.guesses(state):
                node.kinds.setdefault(token, []).append(kind)
                if token not in found:
                    found[token] = [None] * len(self.sources)
                found[token][place] = after
        shares = {token: node.share * self.acceptance.of_all(kinds) for token, kinds in node.kinds.items()}
        return [
            Node(token, number, shares[token], node.depth + 1, states)
            for token, states in found.items()
            if shares[token] >= UNLIKELY
        ]

    def _is_worth(self, source: Source, state: State, node: Node, number: int) -> bool:
        """Whether a source is asked: one whose guesses cost time, only for what is left beside those before it.

        That is all of their worth, unless one is right more often than not: to agree with an unsure one makes it surer.
        What follows a node stands behind those before it in the pass.
        """
        if not isinstance(source, CostlySource):
            return True
        best = max((self.acceptance.of_all(kinds) for kinds in (node.kinds or {}).values()), default=0.0)
        return source.is_worth(state, min(1.0, 2 * (1 - best)), self.cost.place(number + 2))

    def observe(self, verdict: Verdict) -> None:
        """Learn from what the model wrote, and from what it found likely at every node."""
        node: Node | None = self._root
        for token in verdict.tokens:
            if node is None or node.kinds is None:
                break
            for guess, kinds in node.kinds.items():
                self.acceptance.observe(kinds, guess == token)
            self._judge(node, token)
            number = node.after.get(token)
            node = None if number is None else self._nodes[number]
        ends = self._ends()
        for source in self.sources:
            source.learn(verdict.tokens, ends, verdict.likely)
        self._end = (*self._end, *verdict.tokens)[-CONTEXT:]
        self._forget()

    def _judge(self, node: Node, token: int) -> None:
        """Learn how far the shares are true for this text, from what would be drafted after a node if they were."""
        wanted = [self._nodes[number] for number in node.after.values() if number < self._wanted]
        if wanted:
            self._right = FADE * self._right + any(guess.token == token for guess in wanted)
            self._expected = FADE * self._expected + sum(guess.share for guess in wanted) / node.share

    def _ends(self) -> list[Context]:
        """The last tokens of the text, and of the path to each node that was verified."""
        ends = [self._end]
        for token, parent in zip(self._draft.tokens, self._draft.parents, strict=True):
            ends.append((*ends[parent + 1], token)[-CONTEXT:])
        return ends
