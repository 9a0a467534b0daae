/* Event channels, to oneself and to others. */
#include "hostile.h"

static u32 known[16];

static u32 some_port(void)
{
	switch (up_to(8)) {
	case 0: return up_to(4200);
	case 1: return draw();
	case 2: return up_to(24);
	default: return known[up_to(COUNT(known))];
	}
}

static s64 op(u32 cmd, void *argument)
{
	s64 result = evtchn(cmd, argument);
	note(result);
	return result;
}

static void remember(s64 result, u32 port)
{
	if (result == 0)
		known[up_to(COUNT(known))] = port;
}

/* The console's and the store's channels stay. */
static bool is_needed(u32 port)
{
	return port == start_info->console_evtchn || port == start_info->store_evtchn;
}

/* Each takes a page for good, so not too often. */
static void fifo(void)
{
	static u32 nr_taken;
	struct {
		u64 gfn;
		u32 offset, vcpu, bits, pad;
	} control = { mfn_of(scratch()), up_to(4) ? up_to(PAGE / 8) * 8 : up_to(PAGE), up_to(3), 0, 0 };
	u64 array = up_to(4) ? mfn_of(scratch()) : some_mfn();
	if (is_vital(array) || nr_taken >= 3)
		return;
	if (op(up_to(2) ? EVTCHN_init_control : EVTCHN_expand_array, up_to(2) ? (void *)&control : (void *)&array) == 0)
		nr_taken++;
}

void event_once(void)
{
	u32 port = some_port();
	u16 domid = some_domid();
	switch (up_to(16)) {
	case 0: case 1: {
		struct alloc_unbound a = { up_to(4) ? DOMID_SELF : domid, some_domid(), 0 };
		s64 result = op(EVTCHN_alloc_unbound, &a);
		remember(result, a.port);
		if (!is_self(a.domid))
			must_refuse(result, "a channel of another domain", a.domid);
		break;
	}
	case 2: case 3: case 4: {
		struct bind_interdomain b = { domid, 0, port, 0 };
		remember(op(EVTCHN_bind_interdomain, &b), b.local_port);
		break;
	}
	case 5: {
		struct bind_virq b = { up_to(28), up_to(3), 0 };
		remember(op(EVTCHN_bind_virq, &b), b.port);
		break;
	}
	case 6: {
		struct bind_pirq b = { up_to(2) ? up_to(64) : draw(), up_to(4), 0 };
		s64 result = op(EVTCHN_bind_pirq, &b);
		remember(result, b.port);
		break;
	}
	case 7: {
		struct bind_ipi b = { up_to(3), 0 };
		remember(op(EVTCHN_bind_ipi, &b), b.port);
		break;
	}
	case 8: case 9:
		if (!is_needed(port))
			op(EVTCHN_close, &port);
		break;
	case 10: case 11: op(EVTCHN_send, &port); break;
	case 12: {
		struct evtchn_status s = { domid, 0, port, 99, 0, 0 };
		s64 result = op(EVTCHN_status, &s);
		if (!is_self(domid))
			must_refuse(result, "the status of another's channel", domid);
		break;
	}
	case 13: {
		struct bind_vcpu b = { port, up_to(2) ? up_to(3) : draw() };
		if (!is_needed(port))
			op(up_to(2) ? EVTCHN_bind_vcpu : EVTCHN_set_priority, &b);
		break;
	}
	case 14: op(EVTCHN_unmask, &port); break;
	default:
		if (up_to(2))
			return fifo();
		if (!is_self(domid))
			must_refuse(op(EVTCHN_reset, &domid), "a reset of another's channels", domid);
	}
}
