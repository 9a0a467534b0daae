/* Event channels and vCPU operations, for the tests that need them. */
#ifndef EVENTS_H
#define EVENTS_H
#include "guest.h"

enum { EVTCHN_bind_interdomain, EVTCHN_bind_virq, EVTCHN_bind_pirq, EVTCHN_close, EVTCHN_send, EVTCHN_status, EVTCHN_alloc_unbound,
	EVTCHN_bind_ipi, EVTCHN_bind_vcpu, EVTCHN_unmask, EVTCHN_reset, EVTCHN_init_control, EVTCHN_expand_array,
	EVTCHN_set_priority };

struct bind_virq { u32 virq, vcpu, port; };
struct bind_pirq { u32 pirq, flags, port; };
struct bind_vcpu { u32 port, vcpu; };
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
	VCPUOP_register_vcpu_info, VCPUOP_send_nmi, VCPUOP_get_physid, VCPUOP_register_vcpu_time_memory_area };

/* vcpu_guest_context, for VCPUOP_initialise. */
struct vcpu_context {
	u8 fpu[512];
	u64 flags;
	struct {
		u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
		u32 error, vector;
		u64 rip;
		u16 cs, pad0;
		u8 mask, pad1[3];
		u64 rflags, rsp;
		u16 ss, pad2[3];
		u64 es, ds, fs, gs;
	} regs;
	struct trap_info traps[256];
	u64 ldt_base, ldt_entries, gdt_frames[16], gdt_entries, kernel_ss, kernel_sp, ctrlreg[8], debugreg[8], event, failsafe,
		syscall, vm_assist, fs_base, gs_kernel, gs_user;
};
_Static_assert(sizeof(struct vcpu_context) == 5168, "vcpu_guest_context");

/*
 * vCPUs of this kernel. A plain context starts at `entry`, with the page tables that the domain started with, on a stack that ends
 * at `stack_top`, and takes neither traps nor events. start_vcpu() skips the test if the domain has no such vCPU.
 */
void plain_context(struct vcpu_context *context, void (*entry)(void), void *stack_top);
void need_vcpu(u32 vcpu);
void bring_up(u32 vcpu, struct vcpu_context *context);
void start_vcpu(u32 vcpu, void (*entry)(void), void *stack_top);
/* For the vCPU itself; and for another one, which waits for that. */
void go_down(u32 vcpu) __attribute__((noreturn));
void wait_until_down(u32 vcpu);

enum { SCHEDOP_yield, SCHEDOP_block, SCHEDOP_shutdown, SCHEDOP_poll };

/* The upcall: counts, and clears what is pending in the two-level way. */
extern volatile u64 nr_upcalls, upcall_ports[4096 / 64];
void set_upcall(void);
#endif
