/* Front ends of other domains, which die; and how much a packet costs. */
#include "front.h"

enum { FIRST = 5, SECOND, BACKEND };

static struct front own, first, second;
static u32 switch_name;

static void gone(const struct front *front, const char *what)
{
	struct channel_status status = { .vif = front->vif };
	check_result(channel_op(VIF_STATUS, &status), -ENOENT, what);
}

/* What a domain has sent before it was connected is sent then; what waits when it dies is gone with it. */
static void guest_dies(bool by_reset)
{
	make_front(&own, 2, 0);
	connect_front(&own, switch_name, SG);
	post(&own, 1);
	make_front(&first, 0, FIRST);
	make_front(&second, 1, SECOND);
	connect_front(&second, switch_name, SG);
	make_frame(own.mac, first.mac, 1514, 7);
	for (u32 n = 0; n < 3; n++)
		put(&first, 1514, 1514);
	connect_front(&first, switch_name, SG);
	u64 start = now_ns();
	while (own.rx->rsp_prod == 0 && now_ns() - start < 2000000000)
		HC1(sched_op, SCHEDOP_yield);
	check_received(&own, 1514, "what was sent before the connection");
	check(nr_answers(&first) == 1, "%u answers", nr_answers(&first));
	send(&own, first.mac, own.mac, 60, 1);
	send(&own, second.mac, own.mac, 60, 1);
	check(nr_answers(&own) == 0, "packets that have to wait are answered");
	audit();
	if (by_reset) {
		struct {
			u16 domid;
		} reset = { FIRST };
		check_result(evtchn(EVTCHN_reset, &reset), 0, "resetting its event channels");
		gone(&first, "the status of one whose ports were reset");
		check(nr_in_use(&first) == 0, "%u of its grants are in use", nr_in_use(&first));
	}
	check_result(destroy_domain(FIRST), 0, "destroydomain");
	gone(&first, "the status of a dead guest's");
	check(nr_answers(&own) == 1, "%u answers", nr_answers(&own));
	struct channel_connect request = request_of(&first, switch_name, SG);
	check_result(channel_op(VIF_CONNECT, &request), -EINVAL, "connecting one that dies");
	post(&own, 5);
	check_result(kick_rx(&own), 0, "a kick for room");
	check_nothing(&own, "packets of the dead");
	audit();
	let_go_of_pages(&first);
	check(domain_is_gone(FIRST), "the first never goes");
	check_result(destroy_domain(SECOND), 0, "destroydomain");
	check(nr_answers(&own) == 2, "%u answers", nr_answers(&own));
	let_go_of_pages(&second);
	check(domain_is_gone(SECOND), "the second never goes");
	disconnect_front(&own);
	close_ports(&own);
	audit();
}

/* The hypervisor acts for a back end; without it, it does not. */
static void backend_dies(void)
{
	check_result(create_domain(BACKEND), 0, "createdomain");
	make_front(&own, 2, 0);
	close_ports(&own);
	for (u32 n = 0; n < NR_PAGES; n++)
		own.grants[n].domid = BACKEND;
	struct alloc_unbound port = { DOMID_SELF, BACKEND, 0 };
	check_result(evtchn(EVTCHN_alloc_unbound, &port), 0, "alloc_unbound");
	own.tx_port = own.rx_port = port.port;
	struct channel_connect request = request_of(&own, switch_name, SG);
	check_result(channel_op(VIF_CONNECT, &request), -EINVAL, "a back end that nothing was granted to");
	request.backend = BACKEND;
	check_result(channel_op(VIF_CONNECT, &request), 0, "connecting with one port");
	own.vif = request.vif;
	make_front(&first, 0, 0);
	connect_front(&first, switch_name, SG);
	post(&own, 1);
	post(&first, 1);
	send(&first, own.mac, first.mac, 60, 1);
	check_received(&own, 60, "with one port");
	send(&own, first.mac, own.mac, 60, 2);
	check_received(&first, 60, "with one port");
	audit();
	check_result(destroy_domain(BACKEND), 0, "destroydomain");
	gone(&own, "the status of one whose back end is dead");
	check(nr_in_use(&own) == 0, "%u grants are in use", nr_in_use(&own));
	check(domain_is_gone(BACKEND), "the back end never goes");
	disconnect_front(&first);
	close_ports(&first);
	close_ports(&own);
	audit();
}

/* Only the control domain may ask. */
static void others_may_not(void)
{
	/* mov $56, %eax; xor %edi, %edi; mov $DATA, %esi; syscall; mov %rax, DATA + 8; lock incq DATA; pause; jmp to the start. */
	static const u8 code[] = { 0xb8, 56, 0, 0, 0, 0x31, 0xff, 0xbe, 0x00, 0x10, 0x40, 0x00, 0x0f, 0x05, 0x48, 0x89, 0x04, 0x25,
		0x08, 0x10, 0x40, 0x00, 0xf0, 0x48, 0xff, 0x04, 0x25, 0x00, 0x10, 0x40, 0x00, 0xf3, 0x90, 0xeb, 0xdd };
	static struct vcpu_context context;
	struct domctl request = { 0 };
	volatile s64 *data = (s64 *)pages[2];
	check_result(create_domain(FIRST), 0, "createdomain");
	set_max_vcpus(FIRST);
	make_running_domain(FIRST, code, sizeof(code), pages[2], &context);
	check_result(domctl(FIRST, DOMCTL_UNPAUSE, &request), 0, "unpausedomain");
	check(counts((u64 *)pages[2]), "it does not run");
	check(data[1] == -EPERM, "a guest's request: result %ld", data[1]);
	check_result(destroy_domain(FIRST), 0, "destroydomain");
	make_writable(pages[2]);
	check(domain_is_gone(FIRST), "it never goes");
}

void domains_die(void)
{
	others_may_not();
	switch_name = new_switch();
	guest_dies(false);
	guest_dies(true);
	backend_dies();
}

static u64 rdtsc(void)
{
	u32 low, high;
	asm volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (u64)high << 32 | low;
}

/* Ticks of the time-stamp counter; where QEMU counts instructions as time they are instructions. */
void measure(void)
{
	enum { BATCH = 32, ROUNDS = 32 };
	static const u32 lens[] = { 60, 1500, 4096 };
	make_front(&own, 2, 0);
	make_front(&first, 0, 0);
	connect_front(&own, switch_name, SG);
	connect_front(&first, switch_name, SG);
	for (u32 i = 0; i < COUNT(lens); i++) {
		u64 ticks = 0, one = 0;
		make_frame(own.mac, first.mac, lens[i], 1);
		for (u32 round = 0; round < 2 * ROUNDS; round++) {
			u32 nr = round < ROUNDS ? BATCH : 1;
			post(&own, nr);
			for (u32 n = 0; n < nr; n++)
				put(&first, lens[i], PAGE);
			u64 start = rdtsc();
			notify_tx(&first);
			*(nr == 1 ? &one : &ticks) += rdtsc() - start;
			first.tx_cons = first.tx->rsp_prod, own.rx_cons = own.rx->rsp_prod;
		}
		check(own.rx->rsp_prod == own.rx->req_prod, "%u packets arrive", own.rx->rsp_prod);
		printk("  %u bytes: %lu ticks a packet in batches of %u, %lu alone\n", lens[i], ticks / BATCH / ROUNDS, BATCH,
		       one / ROUNDS);
	}
	disconnect_front(&own);
	disconnect_front(&first);
	struct channel_switch sw = { switch_name, 0 };
	check_result(channel_op(SWITCH_DESTROY, &sw), 0, "destroying the switch");
}
