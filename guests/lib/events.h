/* Event channels and vCPU operations, for the tests that need them. */
#ifndef EVENTS_H
#define EVENTS_H
#include "guest.h"

enum { EVTCHN_bind_interdomain, EVTCHN_bind_virq, EVTCHN_bind_pirq, EVTCHN_close, EVTCHN_send, EVTCHN_status, EVTCHN_alloc_unbound,
	EVTCHN_bind_ipi, EVTCHN_bind_vcpu, EVTCHN_unmask, EVTCHN_reset, EVTCHN_init_control, EVTCHN_expand_array,
	EVTCHN_set_priority };

struct bind_virq { u32 virq, vcpu, port; };
struct bind_ipi { u32 vcpu, port; };
struct alloc_unbound { u16 domid, remote; u32 port; };
struct bind_interdomain { u16 remote, pad; u32 remote_port, local_port; };
struct evtchn_status { u16 domid, pad; u32 port, status, vcpu; u64 u; };

static inline s64 evtchn(u32 op, void *argument)
{
	return HC2(event_channel_op, op, argument);
}

static inline u32 new_ipi(u32 vcpu)
{
	struct bind_ipi bind = { vcpu, 0 };
	if (evtchn(EVTCHN_bind_ipi, &bind))
		error("bind_ipi");
	return bind.port;
}

enum { VCPUOP_initialise, VCPUOP_up, VCPUOP_down, VCPUOP_is_up, VCPUOP_get_runstate_info, VCPUOP_register_runstate,
	VCPUOP_set_periodic_timer, VCPUOP_stop_periodic_timer, VCPUOP_set_singleshot_timer, VCPUOP_stop_singleshot_timer,
	VCPUOP_register_vcpu_info };
enum { SCHEDOP_yield, SCHEDOP_block, SCHEDOP_shutdown, SCHEDOP_poll };

/* The upcall: counts, and clears what is pending in the two-level way. */
extern volatile u64 nr_upcalls, upcall_ports[4096 / 64];
void set_upcall(void);
#endif
