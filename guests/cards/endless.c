/* A driver whose polls schedule each other for ever, each in another lane: the vCPUs of the CPUs on which it runs go on nevertheless. */
#include "card.h"

enum { STRIDE = 1024, NEXT = 384, PART = 50, SPAN_NS = 200000000 };

extern const u8 round_xmit[], round_poll[], card_interrupt[];

static struct front b;
static volatile u64 nr_rounds[2];

static u64 napi(u32 n)
{
	return (u64)card->napi + NEXT * n;
}

static void begin(void)
{
	struct twin_attach request;
	struct twin_napi napis[] = { { napi(0), address_of(round_poll), 16, 0 }, { napi(1), address_of(round_poll), 16, 0 } };
	load_card("domains_own");
	request = good_attach();
	request.start_xmit = address_of(round_xmit);
	request.nr_queues = 2, request.queue_stride = STRIDE;
	request.nr_napis = 2, request.napis = (u64)napis;
	check_result(twin_op(TWINOP_ATTACH, &request), 0, "attaching");
}

static u64 nr_polls(void)
{
	struct twin_stats stats = { .twin = twin };
	check_result(twin_op(TWINOP_STATS, &stats), 0, "what it has done");
	return stats.polls;
}

/* The first one's packets go by lane 0 and schedule the poll that is that lane's since then; the second one's by lane 1. */
static void wind_up(struct front *front, u32 lane)
{
	card->argument = napi(lane);
	send(front, stranger, front->mac, 60, 1);
}

static u64 rounds_in(u64 span_ns)
{
	u64 before = nr_rounds[0];
	for (u64 end = now_ns() + span_ns; now_ns() < end;)
		nr_rounds[0]++;
	return nr_rounds[0] - before;
}

static void count_rounds(void)
{
	while (!stop_job)
		if (now_ns())
			nr_rounds[1]++;
}

/* Each has a part at least of what it has alone. */
static void goes_round(bool has_other, const char *what)
{
	begin();
	wind_up(&guest, 0);
	wind_up(&b, 1);
	u64 beside = nr_rounds[1], alone = rounds_in(SPAN_NS), polls = nr_polls();
	beside = nr_rounds[1] - beside;
	*word(napi(0), 0) = napi(1);
	*word(napi(1), 0) = napi(0);
	wind_up(&guest, 0);
	wind_up(&b, 1);
	u64 other = nr_rounds[1], own = rounds_in(SPAN_NS), start = now_ns();
	other = nr_rounds[1] - other;
	check(own > alone / PART, "%s: %lu rounds instead of %lu", what, own, alone);
	if (has_other)
		check(other > beside / PART, "%s: the other vCPU makes %lu rounds instead of %lu", what, other, beside);
	polls = nr_polls() - polls;
	check(polls > 100, "%s: %lu polls", what, polls);
	check_result(detach(), 0, "taking the card away");
	check(now_ns() - start < 2000000000, "%s: it takes %lu ms to take the card away", what, (now_ns() - start) / 1000000);
	check_answers(2, what);
	UNTIL(nr_answers(&b) == 2, what);
	while (nr_answers(&b))
		check(answer(&b) == 0, "%s: an error", what);
	unload_card();
	printk("  %s: %lu polls, %lu of %lu rounds\n", what, polls, own, alone);
}

void endless(void)
{
	need_vcpu(1);
	make_front(&b, 2, 0);
	connect_front(&b, switch_name, SG);
	goes_round(false, "polls for ever");
	UNTIL(HC3(vcpu_op, VCPUOP_is_up, 1, 0) == 0, "vCPU 1's end");
	stop_job = has_stopped = false;
	job = count_rounds;
	check_result(HC3(vcpu_op, VCPUOP_up, 1, 0), 0, "vCPU 1");
	goes_round(true, "polls for ever beside another vCPU");
	stop_job = true;
	UNTIL(has_stopped, "vCPU 1");
	disconnect_front(&b);
	close_ports(&b);
}
