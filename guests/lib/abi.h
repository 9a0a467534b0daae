/* Numbers of the PV interface, for assembly and C. The names are those of Xen's public headers. */
#ifndef ABI_H
#define ABI_H

#define VIRT_BASE 0xffffffff80000000
#define M2P_BASE 0xffff800000000000

#define HC_set_trap_table 0
#define HC_mmu_update 1
#define HC_set_gdt 2
#define HC_stack_switch 3
#define HC_fpu_taskswitch 5
#define HC_set_debugreg 8
#define HC_get_debugreg 9
#define HC_update_descriptor 10
#define HC_memory_op 12
#define HC_multicall 13
#define HC_update_va_mapping 14
#define HC_xen_version 17
#define HC_console_io 18
#define HC_grant_table_op 20
#define HC_vm_assist 21
#define HC_update_va_mapping_otherdomain 22
#define HC_iret 23
#define HC_vcpu_op 24
#define HC_set_segment_base 25
#define HC_mmuext_op 26
#define HC_sched_op 29
#define HC_callback_op 30
#define HC_event_channel_op 32
#define HC_physdev_op 33
#define HC_platform_op 7
#define HC_sysctl 35
#define HC_domctl 36

/* Entry points that are no trap vectors. */
#define ENTRY_EVENT 256
#define ENTRY_SYSCALL 257
#define ENTRY_FAILSAFE 258
#define ENTRY_COUNT 259

#define FLAT_KERNEL_CS 0xe033
#define FLAT_KERNEL_SS 0xe02b
#define FLAT_USER_CS32 0xe023

#define VGCF_IN_SYSCALL 0x100
#endif
