/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Skew heaps, linked by index: smallest key first, O(log n) amortised, any number of heaps of any
 * size in one array. An entity has a node in each of three kinds; a node's number is kind *
 * FAIR_ENTITIES + minor, and no node is number 0 (no class has minor 0).
 *
 * Keys only grow, and lazily: a node whose entity's clock went on stays where it is until it
 * comes to the top, and is put in again then.
 */
#ifndef WEIR_FAIR_HEAP_H
#define WEIR_FAIR_HEAP_H

#define MASK (FAIR_ENTITIES - 1)
#define READY 0                       /* by virtual time; one heap for the link, one for each group */
#define THROTTLED FAIR_ENTITIES       /* by the time at which the ceiling lets it send */
#define FLOOR (2 * FAIR_ENTITIES)     /* by the time at which its floor is due */
#define NODE_MASK (4 * FAIR_ENTITIES - 1)

struct node {
	__u64 key;
	__u16 left;
	__u16 right;
	__u16 in; /* stands in a heap */
	__u16 pad;
};

struct node nodes[4 * FAIR_ENTITIES];

/*
 * More steps than any sound heap needs. Not a constant, and loops count down to zero from it: with
 * a number it knows, or a bound it can learn from, the verifier would count every step.
 */
volatile __u32 most_steps = 4 * FAIR_ENTITIES;

/* State does not fit together; the next dequeue drops all packets and begins again. */
__u32 broken;

static __always_inline struct node *node(__u32 n)
{
	return &nodes[n & NODE_MASK];
}

static __always_inline int before(__u64 a, __u64 b)
{
	return (__s64)(a - b) < 0;
}

/* Both heaps as one; returns its top. Of equal keys the first heap's goes before. */
__noinline __u32 heap_merge(__u32 a, __u32 b)
{
	__u32 budget = most_steps;
	__u32 last = 0;

	node(0)->left = 0;
	while (a && b && can_loop) {
		__u32 next;

		if (!budget--) {
			broken = 1;
			break;
		}
		if (before(node(b)->key, node(a)->key)) {
			__u32 t = a;

			a = b;
			b = t;
		}
		next = node(a)->right;
		node(a)->right = node(a)->left;
		node(last)->left = a;
		last = a;
		a = next;
	}
	node(last)->left = a ? a : b;
	return node(0)->left;
}

static __always_inline __u32 heap_push(__u32 root, __u32 n, __u64 key)
{
	struct node *new = node(n);

	new->key = key;
	new->left = 0;
	new->right = 0;
	new->in = 1;
	return root ? heap_merge(n, root) : n;
}

/* Without its top. */
static __always_inline __u32 heap_pop(__u32 root)
{
	struct node *top = node(root);
	__u32 left = top->left, right = top->right;

	top->in = 0;
	if (!right)
		return left;
	return left ? heap_merge(left, right) : right;
}

/* The top with a later key, at its new place. */
static __always_inline __u32 heap_later(__u32 root, __u64 key)
{
	struct node *top = node(root);

	if ((!top->left || !before(node(top->left)->key, key)) &&
	    (!top->right || !before(node(top->right)->key, key))) {
		top->key = key;
		return root;
	}
	return heap_push(heap_pop(root), root, key);
}

#endif
