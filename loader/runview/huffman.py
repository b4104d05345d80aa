"""The mixture: an integer Huffman tree that splits slot numbers between components in closed form.

At an inner node of weight W = wL + wR, of the first x slots L(x) = floor((x wL + floor(W/2)) / W) go left. L grows by
0 or 1, so each slot belongs to exactly one component, any prefix is within about one slot of the exact share, and both
directions are arithmetic: no state, no list. Callers keep slots x weight sum below 2^63.
"""

import heapq
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Tree:
    """`weights` by component number, in manifest order; zero weights take no part.

    Leaves are numbered in manifest order, inner nodes after them as they are made; the queue is ordered by (weight,
    number) and the first of two popped nodes becomes the left child.
    """

    def __init__(self, weights: list[int]) -> None:
        self.n_components = len(weights)
        self.leaf_component = [component for component, weight in enumerate(weights) if weight > 0]
        n_leaves = len(self.leaf_component)
        weight = [weights[component] for component in self.leaf_component]
        self.children: list[tuple[int, int]] = []
        queue = [(w, number) for number, w in enumerate(weight)]
        heapq.heapify(queue)
        while len(queue) > 1:
            first, second = heapq.heappop(queue), heapq.heappop(queue)
            self.children.append((first[1], second[1]))
            weight.append(first[0] + second[0])
            heapq.heappush(queue, (weight[-1], len(weight) - 1))
        self.weight, self.n_leaves, self.root = weight, n_leaves, len(weight) - 1
        self._total = np.array(weight[n_leaves:], np.uint64)
        self._left_weight = np.array([weight[left] for left, _ in self.children], np.uint64)
        self._next = np.array(self.children, np.int64).reshape(-1, 2)
        self._parent = {child: (n_leaves + at, side) for at, pair in enumerate(self.children) for side, child in enumerate(pair)}

    def split(self, slots: Array) -> tuple[Array, Array]:
        """For each slot (int64): its component's number, and how many earlier slots went to the same component."""
        x = slots.astype(np.uint64)
        node = np.full(x.shape, self.root, np.int64)
        active = np.arange(len(x)) if self.children else np.zeros(0, np.int64)
        while len(active):
            inner = node[active] - self.n_leaves
            total, left_weight, at = self._total[inner], self._left_weight[inner], x[active]
            left, rest = np.divmod(at * left_weight + (total >> np.uint64(1)), total)
            goes_left = rest + left_weight >= total  # exactly when L(x+1) > L(x)
            x[active] = np.where(goes_left, left, at - left)
            node[active] = np.where(goes_left, self._next[inner, 0], self._next[inner, 1])
            active = active[node[active] >= self.n_leaves]
        return np.array(self.leaf_component, np.int64)[node], x.astype(np.int64)

    def counts(self, slots: int) -> Array:
        """How many of the first `slots` slots each component gets, int64 [components]; O(components)."""
        counts = np.zeros(self.n_components, np.int64)
        stack = [(self.root, slots)] if self.n_leaves else []
        while stack:
            node, x = stack.pop()
            if node < self.n_leaves:
                counts[self.leaf_component[node]] = x
                continue
            left, right = self.children[node - self.n_leaves]
            total = self.weight[node]
            n_left = (x * self.weight[left] + total // 2) // total
            stack += [(left, n_left), (right, x - n_left)]
        return counts

    def join(self, component: int, counts: Array) -> Array:
        """The inverse of `split`: the slot of the component's pack number `counts`, elementwise int64.

        Going up, the slot is the largest x with L(x) = c (left) or x - L(x) = c (right).
        """
        x = counts.astype(np.uint64)
        node = self.leaf_component.index(component)
        while node != self.root:
            node, side = self._parent[node]
            left, right = self.children[node - self.n_leaves]
            total, half = np.uint64(self.weight[node]), np.uint64(self.weight[node] // 2)
            if side == 0:  # L(y) >= c+1 first holds at y = ceil(((c+1) W - half) / wL); x = y - 1
                x = ((x + np.uint64(1)) * total - half - np.uint64(1)) // np.uint64(self.weight[left])
            else:  # y - L(y) >= c+1 first holds at y = floor((c W + half) / wR) + 1
                x = (x * total + half) // np.uint64(self.weight[right])
        return x.astype(np.int64)
