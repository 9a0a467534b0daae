/* What cannot be a card. */
#include "card.h"

extern const u8 card_xmit[], card_poll[];

static struct twin_napi napis[17];
static struct twin_irq irqs[17];

static struct twin_attach fresh(void)
{
	struct twin_attach request = good_attach();
	for (u32 n = 0; n < COUNT(napis); n++) {
		napis[n] = *(struct twin_napi *)request.napis;
		napis[n].napi += n;
		irqs[n] = *(struct twin_irq *)request.irqs;
	}
	request.napis = (u64)napis, request.irqs = (u64)irqs;
	return request;
}

void bad_attaches(void)
{
	struct twin_attach request;
#define REFUSED(change, expected, what)                                                                                \
	request = fresh();                                                                                             \
	change;                                                                                                        \
	check_result(twin_op(TWINOP_ATTACH, &request), -(expected), what)
	check(twin_op(TWINOP_ATTACH, (void *)8) == -EFAULT, "a card that is not there");
	REFUSED(request.twin = 31, ENOENT, "no twin's");
	REFUSED(request.twin = 32, ENOENT, "an impossible twin's");
	REFUSED(request.start_xmit++, EINVAL, "a transmit routine that is none");
	REFUSED(request.start_xmit = IMPORTED, EINVAL, "a transmit routine of the domain's");
	REFUSED(request.napis = 8, EFAULT, "polls that are not there");
	REFUSED(request.irqs = 8, EFAULT, "interrupts that are not there");
	REFUSED(request.nr_queues = 0, EINVAL, "no queue");
	REFUSED(request.nr_queues = 17, EINVAL, "too many queues");
	REFUSED(request.nr_queues = 2, EINVAL, "two queues in one place");
	REFUSED(request.nr_napis = 0, EINVAL, "no poll");
	REFUSED(request.nr_napis = 17, EINVAL, "too many polls");
	REFUSED(request.nr_irqs = 0, EINVAL, "no interrupt");
	REFUSED(request.nr_irqs = 17, EINVAL, "too many interrupts");
	REFUSED(request.flags = 32, EINVAL, "unknown flags");
	REFUSED(request.pad = 1, EINVAL, "what must be zero");
	REFUSED(request.max_frame = 59, EINVAL, "frames that are too short");
	REFUSED(request.max_frame = 65536, EINVAL, "frames that are too long");
	REFUSED(napis[0].poll++, EINVAL, "a poll that is none");
	REFUSED(napis[0].weight = 0, EINVAL, "a poll that does nothing");
	REFUSED(napis[0].weight = 257, EINVAL, "a poll that does too much");
	REFUSED(napis[0].flags = 1, EINVAL, "unknown flags of a poll");
	REFUSED((request.nr_napis = 2, napis[1] = napis[0]), EINVAL, "a poll twice");
	REFUSED(irqs[0].handler++, EINVAL, "a handler that is none");
	REFUSED(irqs[0].port = card_port, EINVAL, "an event channel that is no interrupt's");
	REFUSED(irqs[0].port = 4000, EINVAL, "no event channel");
	REFUSED(request.nr_irqs = 2, EINVAL, "an interrupt twice");
	REFUSED(request.port = irq_port, EINVAL, "a port that is an interrupt's");
	REFUSED(request.port = guest.tx_port, EINVAL, "a port that is an interface's");
	REFUSED(request.port = 4000, EINVAL, "no port");
	REFUSED(request.vif = guest.device, ENODEV, "an interface that is not the way out");
	REFUSED(request.vif = 77, ENODEV, "no interface");
	struct twin_name name = { twin, 1 };
	check(twin_op(TWINOP_DETACH, &name) == -EINVAL, "unknown flags when it is taken away");
	check(detach() == -ENOENT, "a card that was not given");
	/* One that runs. */
	extern const u8 twin_upcall[];
	struct twin_call call = { .twin = twin, .function = address_of(twin_upcall) };
	check_result(twin_op(TWINOP_CALL, &call), 0, "a call");
	REFUSED((void)0, EBUSY, "a twin that waits");
	check_result(go_on(&call, 0), 0, "going on");
	/* Nothing of all that stays. */
	check_result(attach(), 0, "a good one");
	REFUSED((void)0, EBUSY, "another card");
	check(twin_op(TWINOP_CALL, &call) == -EBUSY, "calling a twin that has a card");
	check_result(detach(), 0, "taking it away");
	/* Buffers that no packet may lie in. */
	static const struct {
		u64 of;
		u32 bytes;
		const char *what;
	} bad[] = { { (u64)pages[30] + 4000, 2048, "in two pages" }, { 8, 100, "that is not there" }, { 0xffff830000000000, 100, "of the hypervisor's" } };
	for (u32 n = 0; n < COUNT(bad); n++) {
		struct twin_lent lent = { SKB, bad[n].bytes, (u64)pages[31], bad[n].of, 0, 0 };
		struct twin_lend lend = { twin, 1, (u64)&lent };
		check(twin_op(TWINOP_LEND, &lend) == -EINVAL, "a buffer %s", bad[n].what);
	}
	struct twin_lent table = { SKB, 2048, (u64)pages[31], (u64)entry_for(pages[5], 1) & ~(PAGE - 1), 0, 0 };
	struct twin_lend lend = { twin, 1, (u64)&table };
	check(twin_op(TWINOP_LEND, &lend) == -EINVAL, "a page table as a buffer");
	/* A page that was lent stays ordinary memory. */
	table.of = (u64)pages[30];
	check_result(twin_op(TWINOP_LEND, &lend), 0, "a good buffer");
	memset(pages[30], 0, PAGE);
	make_read_only(pages[30]);
	check(mmuext(PIN_L1, mfn_of(pages[30]), 0) < 0, "a lent page becomes a page table");
	make_writable(pages[30]);
}
