//! The hypercall table: every number that Xen 4.17 defines, and two of our own, 55 and 56; what becomes of it here.
//! That callers have the same numbers from `xen-abi` and `twin-abi` a test sees to (`xtask/src/abi.rs`).

use super::{settle, Caller, Done, FromRegister, GuestPtr, Outcome};
use xen_abi::errno::Errno;

/// Makes the dispatcher from the rows. A row is `number name(argument: Type, ..) => handler;` or
/// `number name => unsupported;`. The dispatcher converts the argument registers in order and calls the handler.
///
/// Each row is a function of its own, so that a short call does not pay for the registers and the stack of long ones.
macro_rules! hypercalls {
    ($( $number:literal $name:ident $( ( $($arg:ident : $ty:ty),* ) )? => $handler:tt $( :: $rest:ident )* ; )*) => {
        /// Calls hypercall `number` with the arguments of `cx`. ENOSYS for a number that is not in the table.
        #[inline(always)]
        pub fn call(cx: &mut Caller, number: u64) -> Done {
            match number {
                $( $number => hypercalls!(@row $name, cx, [ $( $($arg: $ty),* )? ], $handler $( :: $rest )*), )*
                _ => settle(Err(Errno::ENOSYS)),
            }
        }
    };
    (@row $name:ident, $cx:ident, [ $($args:tt)* ], unsupported) => { settle(Err(Errno::ENOSYS)) };
    (@row $name:ident, $cx:ident, [ $($arg:ident : $ty:ty),* ], $handler:tt $( :: $rest:ident )+) => {{
        #[inline(never)]
        fn $name(cx: &mut Caller) -> Done {
            let mut outcome = || -> Outcome {
                #[allow(unused_mut, unused_variables, reason = "calls without arguments")]
                let mut arguments = (0..6).map(|n| cx.arg(n));
                $( let $arg = <$ty as FromRegister>::from_register(arguments.next().unwrap_or(0))?; )*
                super::$handler $( :: $rest )+ (cx $(, $arg)*)
            };
            settle(outcome())
        }
        $name($cx)
    }};
}

hypercalls! {
    0  set_trap_table(traps: GuestPtr<xen_abi::trap::TrapInfo>) => set_trap_table::call;
    1  mmu_update(reqs: GuestPtr<xen_abi::mmu::MmuUpdate>, count: u32, done: GuestPtr<u32>, foreign: u32) => mmu_update::call;
    2  set_gdt(frames: GuestPtr<u64>, entries: u32) => set_gdt::call;
    3  stack_switch(ss: u64, sp: u64) => stack_switch::call;
    4  set_callbacks => unsupported;
    5  fpu_taskswitch(set: u32) => fpu_taskswitch::call;
    6  sched_op_compat => unsupported;
    7  platform_op(arg: GuestPtr<[u32; 2]>) => platform_op::call;
    8  set_debugreg(reg: u32, value: u64) => debugreg::set;
    9  get_debugreg(reg: u32) => debugreg::get;
    10 update_descriptor(address: u64, descriptor: u64) => update_descriptor::call;
    12 memory_op(cmd: u64, arg: GuestPtr<u8>) => memory_op::call;
    13 multicall(list: GuestPtr<xen_abi::hypercall::MulticallEntry>, count: u32) => multicall::call;
    14 update_va_mapping(va: u64, value: u64, flags: u64) => update_va_mapping::call;
    15 set_timer_op(timeout_ns: u64) => sched_op::set_timer;
    16 event_channel_op_compat => unsupported;
    17 xen_version(cmd: u32, arg: GuestPtr<u8>) => xen_version::call;
    18 console_io(cmd: u32, count: u32, buffer: GuestPtr<u8>) => console_io::call;
    19 physdev_op_compat => unsupported;
    20 grant_table_op(cmd: u32, arg: GuestPtr<u8>, count: u32) => grant_table_op::call;
    21 vm_assist(cmd: u32, kind: u32) => vm_assist::call;
    22 update_va_mapping_otherdomain(va: u64, value: u64, flags: u64, domid: u32) => update_va_mapping::other_domain;
    23 iret() => iret::call;
    24 vcpu_op(cmd: u32, vcpu: u32, arg: GuestPtr<u8>) => vcpu_op::call;
    25 set_segment_base(which: u32, base: u64) => set_segment_base::call;
    26 mmuext_op(ops: GuestPtr<xen_abi::mmu::MmuextOp>, count: u32, done: GuestPtr<u32>, foreign: u32) => mmuext_op::call;
    27 xsm_op => unsupported;
    28 nmi_op(cmd: u32, arg: GuestPtr<u8>) => nmi_op::call;
    29 sched_op(cmd: u32, arg: GuestPtr<u8>) => sched_op::call;
    30 callback_op(cmd: u32, arg: GuestPtr<u8>) => callback_op::call;
    31 xenoprof_op => unsupported;
    32 event_channel_op(cmd: u32, arg: GuestPtr<u8>) => event_channel_op::call;
    33 physdev_op(cmd: u32, arg: GuestPtr<u8>) => physdev_op::call;
    34 hvm_op => unsupported;
    35 sysctl(arg: GuestPtr<xen_abi::sysctl::Sysctl>) => sysctl::call;
    36 domctl(arg: GuestPtr<xen_abi::domctl::Domctl>) => domctl::call;
    37 kexec_op => unsupported;
    38 tmem_op => unsupported;
    39 argo_op => unsupported;
    40 xenpmu_op() => xenpmu_op::call;
    41 dm_op => unsupported;
    42 hypfs_op => unsupported;
    48 mca => unsupported;
    49 paging_domctl_cont => unsupported;
    55 twin_op(cmd: u32, arg: GuestPtr<u8>) => twin_op::call;
    56 channel_op(cmd: u32, arg: GuestPtr<u8>) => channel_op::call;
}
