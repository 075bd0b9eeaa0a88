/*
 * DPDK's rte_sched as user_htb measures weir-htb with backlogs: one subport, a pipe a user with one queue,
 * 16 packets of 64 bytes waiting in each; what leaves is classified by a word of its header and comes
 * again. Run by bench-rte-sched.sh. Prints millions of packets a second, one core, the median of some plays.
 */
#include <stdio.h>
#include <stdlib.h>
#include <rte_config.h>
#undef RTE_USE_LIBBSD /* whose headers are not needed */
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_sched.h>

#define BURST 64
#define WAITING 16
#define PLAYS 3
#define PACKETS 1000000ull
/* The last of the traffic classes is the best effort one, the only one used here. */
#define BE RTE_SCHED_TRAFFIC_CLASS_BE

/* Far above what a core can do, or the port waits for its clock; bytes a second. */
static const uint64_t port_rate = 100000000000ull / 8;

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static struct rte_sched_port *port_of(uint32_t users, uint32_t pipes)
{
	struct rte_sched_subport_profile_params subport_profile = {
		.tb_rate = port_rate, .tb_size = 1000000, .tc_period = 10,
	};
	/* Half of the users have a quarter of what the others have, as in the experiments. */
	struct rte_sched_pipe_params profiles[2] = {
		{ .tb_rate = port_rate * 2 / 5 / users, .tb_size = 1000000, .tc_period = 40, .tc_ov_weight = 1 },
		{ .tb_rate = port_rate * 8 / 5 / users, .tb_size = 1000000, .tc_period = 40, .tc_ov_weight = 1 },
	};
	struct rte_sched_subport_params subport = {
		.n_pipes_per_subport_enabled = pipes,
		.pipe_profiles = profiles, .n_pipe_profiles = 2, .n_max_pipe_profiles = 2,
	};
	for (int tc = 0; tc < RTE_SCHED_TRAFFIC_CLASSES_PER_PIPE; tc++)
		subport_profile.tc_rate[tc] = port_rate;
	for (int i = 0; i < 2; i++) {
		profiles[i].tc_rate[BE] = profiles[i].tb_rate;
		for (int q = 0; q < RTE_SCHED_BE_QUEUES_PER_PIPE; q++)
			profiles[i].wrr_weights[q] = 1;
	}
	subport.qsize[BE] = 64;
	struct rte_sched_port_params params = {
		.name = "port", .socket = 0, .rate = port_rate, .mtu = 1522, .frame_overhead = 0,
		.n_subports_per_port = 1, .subport_profiles = &subport_profile, .n_subport_profiles = 1,
		.n_max_subport_profiles = 1, .n_pipes_per_subport = pipes,
	};
	struct rte_sched_port *port = rte_sched_port_config(&params);
	if (!port || rte_sched_subport_config(port, 0, &subport, 0))
		rte_exit(1, "rte_sched refuses the port\n");
	for (uint32_t pipe = 0; pipe < users; pipe++)
		if (rte_sched_pipe_config(port, 0, pipe, pipe % 2))
			rte_exit(1, "rte_sched refuses pipe %u\n", pipe);
	return port;
}

static inline void classify(struct rte_sched_port *port, struct rte_mbuf *packet)
{
	uint32_t user = *rte_pktmbuf_mtod(packet, uint32_t *);
	rte_sched_port_pkt_write(port, packet, 0, user, BE, 0, RTE_COLOR_GREEN);
}

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	if (used < 0 || argc - used < 2)
		rte_exit(1, "usage: rte-sched [EAL options] -- USERS\n");
	uint32_t users = strtoul(argv[used + 1], NULL, 10);
	struct rte_sched_port *port = port_of(users, rte_align32pow2(users));
	struct rte_mempool *pool = rte_pktmbuf_pool_create("packets", users * WAITING + 1024, 256, 0,
							    RTE_PKTMBUF_HEADROOM + 64, SOCKET_ID_ANY);
	if (!pool)
		rte_exit(1, "no memory for packets\n");
	for (uint32_t i = 0; i < users * WAITING; i++) {
		struct rte_mbuf *packet = rte_pktmbuf_alloc(pool);
		*(uint32_t *)rte_pktmbuf_append(packet, 64) = i % users;
		classify(port, packet);
		if (rte_sched_port_enqueue(port, &packet, 1) != 1)
			rte_exit(1, "packet %u finds no room\n", i);
	}
	double mpps[PLAYS];
	for (int play = -1; play < PLAYS; play++) {
		uint64_t sent = 0, lost = 0, start = rte_rdtsc(), asked = 0;
		while (sent < PACKETS) {
			struct rte_mbuf *packets[BURST];
			int n = rte_sched_port_dequeue(port, packets, BURST);
			for (int i = 0; i < n; i++)
				classify(port, packets[i]);
			lost += n - rte_sched_port_enqueue(port, packets, n);
			sent += n;
			if (++asked > PACKETS)
				rte_exit(1, "the port paces itself: %lu packets of %llu\n", sent, PACKETS);
		}
		if (lost)
			rte_exit(1, "%lu packets lost\n", lost);
		/* The first warms up. */
		if (play >= 0)
			mpps[play] = sent / ((double)(rte_rdtsc() - start) / rte_get_tsc_hz()) / 1e6;
	}
	qsort(mpps, PLAYS, sizeof(*mpps), by_value);
	printf("%.2f\n", mpps[PLAYS / 2]);
	return 0;
}
