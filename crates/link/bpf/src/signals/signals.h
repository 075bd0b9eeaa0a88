/* SPDX-License-Identifier: Apache-2.0 */
/* The link's signals that user space reads. Times are of the monotonic clock, in nanoseconds. */
#ifndef WEIR_SIGNALS_H
#define WEIR_SIGNALS_H

#define WEIR_STAMPS 4 /* of a flow that wait for their answer */
#define WEIR_CELLS 16
#define WEIR_CELL_NS 10000000ULL

struct weir_least { /* the least queue that was seen in a time of 10 ms */
	__u64 cell; /* its number since boot */
	__u64 ns;
};

struct weir_link_signals { /* counted from the load of the programs */
	__u64 sent_bytes;    /* all packets that left, as the scheduler counts them */
	__u64 sent_payload;  /* TCP payload among them */
	__u64 acked_payload; /* TCP payload that was answered, by acknowledgement, its blocks or its duplicates */
	__u64 acked_base_us; /* the sum of answered payload times the flow's base */
	__u64 samples;       /* round trips */
	__u64 waits_since;   /* the first payload that left since the last answer; 0: none */
	struct weir_least least[WEIR_CELLS];
	__u64 arrived_bytes; /* all packets that came, with the headers of each segment */
	__u64 delays;        /* of packets that came, by a clock that is known */
	struct weir_least least_delay[WEIR_CELLS]; /* above the flow's base */
	__u64 last_delay;    /* the same of the last one, for flows that begin in a queue */
	__u64 last_delay_at;
	__u64 last_delay_epoch;
};
_Static_assert(sizeof(struct weir_link_signals) == 600, "user space reads this layout");

struct weir_sent_flow { /* one TCP flow's data that left */
	__u64 answered;  /* the last answer, or the first packet */
	__u32 high;      /* behind the highest sequence number that left */
	__u32 una;       /* the highest acknowledgement */
	__u32 sacked;    /* bytes above it up to the furthest block, or that its duplicates have told of */
	__u32 mss;
	__u32 period;    /* of `base` */
	__u32 epoch;     /* of `base` (weir_signals_config) */
	__u64 base[2];   /* the least round trip of this period and of the one before; 0: none */
	__u64 left[WEIR_STAMPS]; /* 0: free */
	__u32 stamp[WEIR_STAMPS]; /* TSval */
};
_Static_assert(sizeof(struct weir_sent_flow) == 96, "user space reads this layout");

#define WEIR_NO_UNIT 1

struct weir_arrived_flow { /* the clock of one TCP flow's far end, as its timestamps tell it */
	__u64 first;        /* when the first one came; 0: packets have left, and none has come */
	__s64 base[2];      /* the least delay of this period and of the one before */
	__u32 first_stamp;  /* TSval */
	__u32 last_stamp;
	__u32 unit_ns;      /* of the far clock; 0: not known yet, WEIR_NO_UNIT: none that weir knows */
	__u32 period;       /* of `base` */
	__u32 epoch;        /* of `base` (weir_signals_config) */
	__u32 has_base;     /* bit 0: of this period, bit 1: of the one before */
	__u32 was_fast;     /* the unit did not hold once */
};

struct weir_signals_config { /* written by user space */
	__u32 epoch;         /* another one ends all bases of round trips */
	__u32 arrival_epoch; /* another one ends all bases of delays */
	__u32 link;          /* its number */
};

#endif
