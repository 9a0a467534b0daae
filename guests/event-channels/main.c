/* Two-level event channels: pending and mask bits, the upcall, the operations and their errors. */
#include "events.h"

const char test_name[] = "event-channels";

static volatile struct shared_info *shared;

static bool took(u32 port)
{
	bool was = upcall_ports[port / 64] >> port % 64 & 1;
	upcall_ports[port / 64] &= ~(1ul << port % 64);
	return was;
}

static bool is_pending(u32 port)
{
	return shared->pending[port / 64] >> port % 64 & 1;
}

static u32 status(u32 port)
{
	struct evtchn_status s = { DOMID_SELF, 0, port, 99, 0, 0 };
	return evtchn(EVTCHN_status, &s) ? 100 : s.status;
}

void test_main(void)
{
	set_upcall();
	shared = shared_info();
	/* An event to oneself: an upcall as soon as events are unmasked and a hypercall ends. */
	u32 port = new_ipi(0);
	check(port > 0 && port < 4096, "port %u", port);
	check(status(port) == 5, "status %u", status(port));
	check_result(evtchn(EVTCHN_send, &port), 0, "send");
	check(is_pending(port) && shared->vcpu[0].upcall_pending, "nothing is pending");
	check(nr_upcalls == 0, "an upcall came though events are masked");
	shared->vcpu[0].upcall_mask = 0;
	HC1(xen_version, 0);
	check(nr_upcalls == 1 && took(port), "%lu upcalls", nr_upcalls);
	check(shared->vcpu[0].upcall_mask == 0, "events stay masked after the upcall");
	evtchn(EVTCHN_send, &port);
	check(nr_upcalls == 2 && took(port), "%lu upcalls", nr_upcalls);
	/* A masked port: pending, but no upcall until it is unmasked. */
	shared->mask[port / 64] |= 1ul << port % 64;
	evtchn(EVTCHN_send, &port);
	check(nr_upcalls == 2 && is_pending(port), "a masked port: %lu upcalls", nr_upcalls);
	check_result(evtchn(EVTCHN_unmask, &port), 0, "unmask");
	check(nr_upcalls == 3 && took(port), "an unmasked port: %lu upcalls", nr_upcalls);
	/* A channel to oneself, with two ends. */
	struct alloc_unbound unbound = { DOMID_SELF, DOMID_SELF, 0 };
	check_result(evtchn(EVTCHN_alloc_unbound, &unbound), 0, "alloc_unbound");
	check(status(unbound.port) == 1, "status %u", status(unbound.port));
	check_result(evtchn(EVTCHN_send, &unbound.port), 0, "sending to nobody");
	struct bind_interdomain bind = { DOMID_SELF, 0, unbound.port, 0 };
	check_result(evtchn(EVTCHN_bind_interdomain, &bind), 0, "bind_interdomain");
	check(status(unbound.port) == 2 && status(bind.local_port) == 2, "status %u, %u", status(unbound.port),
	      status(bind.local_port));
	took(bind.local_port), took(unbound.port);
	check_result(evtchn(EVTCHN_send, &bind.local_port), 0, "send");
	check(took(unbound.port) && !took(bind.local_port), "the event came out at the wrong end");
	check_refused(evtchn(EVTCHN_bind_interdomain, &bind), "binding twice");
	check_result(evtchn(EVTCHN_close, &bind.local_port), 0, "close");
	check(status(bind.local_port) == 0 && status(unbound.port) == 1, "status %u, %u", status(bind.local_port),
	      status(unbound.port));
	check_result(evtchn(EVTCHN_close, &unbound.port), 0, "close");
	/* Virtual interrupts. */
	struct bind_virq virq = { 1, 0, 0 };
	check_result(evtchn(EVTCHN_bind_virq, &virq), 0, "bind_virq");
	check(status(virq.port) == 4, "status %u", status(virq.port));
	check_result(evtchn(EVTCHN_bind_virq, &virq), -EEXIST, "binding a virtual interrupt twice");
	check_result(evtchn(EVTCHN_send, &virq.port), -EINVAL, "sending to a virtual interrupt");
	/* What is wrong. */
	virq.virq = 24;
	check_result(evtchn(EVTCHN_bind_virq, &virq), -EINVAL, "virtual interrupt 24");
	struct bind_ipi ipi = { 1000, 0 };
	check_result(evtchn(EVTCHN_bind_ipi, &ipi), -ENOENT, "an IPI to vCPU 1000");
	u32 bad[] = { 0, port + 40, 4096, 0x7fffffff, 0xffffffff };
	for (u32 i = 0; i < COUNT(bad); i++) {
		check_result(evtchn(EVTCHN_send, &bad[i]), -EINVAL, "sending to a bad port");
		check_result(evtchn(EVTCHN_close, &bad[i]), -EINVAL, "closing a bad port");
	}
	check_refused(evtchn(EVTCHN_unmask, &bad[4]), "unmasking a bad port");
	/* All ports can be had, but not more. */
	u32 count = 0, first = 0, last = 0;
	while (count < 5000) {
		struct bind_ipi more = { 0, 0 };
		if (evtchn(EVTCHN_bind_ipi, &more))
			break;
		first = first ?: more.port;
		last = more.port;
		count++;
	}
	check(count > 1000 && count < 4096, "%u ports could be had", count);
	for (u32 p = first; p <= last; p++)
		evtchn(EVTCHN_close, &p);
}
