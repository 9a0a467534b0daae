// Every way into the hypervisor from ring 3, and every way back.
//
// Symbols in braces are constants that Rust fills in (see mod.rs). All stacks used here lie in the per-CPU block of
// percpu.rs. Frames are CpuUserRegs, lowest address first: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi
// error_code/entry_vector rip cs rflags rsp ss. A frame in CpuInfo starts at an address that is 8 modulo 16.

.section .text.entry, "ax"

.macro PUSH_REGS
    push rdi
    push rsi
    push rdx
    push rcx
    push rax
    push r8
    push r9
    push r10
    push r11
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
.endm

.macro SAVE_REGS
    cld
    PUSH_REGS
.endm

.macro RESTORE_REGS
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rax
    pop rcx
    pop rdx
    pop rsi
    pop rdi
.endm

// Vector stubs.
// Entered from: IDT gates, interrupts off. Stack: CPU's frame [error code] rip cs rflags rsp ss.
// {STUB_SIZE} bytes each, so that the IDT can be filled by arithmetic. A gate does not clear EFLAGS.AC, which may be the
// guest's: with SMAP the gates lead to the CLAC, without it (CLAC is then undefined) to what follows, {CLAC_SIZE} bytes on.
// The CPU pushes an error code for vectors 8 #DF, 10 #TS, 11 #NP, 12 #SS, 13 #GP, 14 #PF, 17 #AC, 21 #CP, 29 #VC, 30 #SX;
// a zero stands in for the others.
.balign {STUB_SIZE}
.global vector_stubs
vector_stubs:
.set vector, 0
.rept 256
    .balign {STUB_SIZE}
    clac
    .if (vector == 8) || (vector == 10) || (vector == 11) || (vector == 12) || (vector == 13) || (vector == 14) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    push 0
    .endif
    mov dword ptr [rsp + 4], vector
    .if (vector == 1)
    jmp entry_db
    .elseif (vector == 2)
    jmp entry_nmi
    .elseif (vector == 8) || (vector == 18)
    jmp entry_ist
    .elseif (vector == 14)
    jmp entry_pf
    .else
    jmp entry_common
    .endif
    .set vector, vector + 1
.endr

// Exceptions and interrupts on the normal stack.
// From ring 3 the frame is exactly CpuInfo.guest_regs, because TSS.rsp0 points past its ss.
entry_common:
    SAVE_REGS
    mov rdi, rsp
    test byte ptr [rsp + {CS}], 3
    jz from_hypervisor
    sub rsp, 8
    call {trap_from_guest}
    add rsp, 8
    jmp return_to_guest

// #PF has its own handler: it is the most frequent trap.
entry_pf:
    SAVE_REGS
    mov rdi, rsp
    test byte ptr [rsp + {CS}], 3
    jz from_hypervisor
    sub rsp, 8
    call {page_fault_from_guest}
    add rsp, 8
    jmp return_to_guest

// An exception or interrupt that hit the hypervisor itself, on whatever stack. rdi = frame.
// Returns to where it came from, or to the address that the handler put in the frame (exception table).
from_hypervisor:
    mov rbx, rsp
    and rsp, -16
    call {trap_from_hypervisor}
    mov rsp, rbx
    RESTORE_REGS
    add rsp, 8
    iretq

// #DF and #MC: on stacks of their own, from anywhere. The handler does not return.
entry_ist:
    SAVE_REGS
    mov rdi, rsp
    jmp from_hypervisor

// The frame at rsp, on a stack that an exception has for its own, came from ring 3: it moves to CpuInfo.guest_regs, and is handled
// there.
.macro TRAP_FROM_GUEST_ELSEWHERE
    mov rsi, rsp
    mov rdi, rsp
    or rdi, {STACK_MASK}
    sub rdi, {GUEST_REGS_FROM_TOP} - 1
    mov rdx, rdi
    mov ecx, {FRAME_WORDS}
    rep movsq
    mov rsp, rdx
    mov rdi, rsp
    sub rsp, 8
    call {trap_from_guest}
    add rsp, 8
.endm

// #DB: on a stack of its own, because a data breakpoint behind MOV SS fires at the first instruction of the SYSCALL
// entry, with the guest's stack pointer.
entry_db:
    SAVE_REGS
    mov rdi, rsp
    test byte ptr [rsp + {CS}], 3
    jz from_hypervisor
    TRAP_FROM_GUEST_ELSEWHERE
    jmp return_to_guest

// NMI: on a stack of its own, because it comes at any instruction. The way back to ring 3 is an IRETQ that may fault, as another
// vCPU may have taken away the descriptor of a segment that this one runs on; such a fault is the guest's, and counted. What is
// pending waits, as if there had been no NMI: NMIs stay blocked until that IRETQ, and it has to come soon.
entry_nmi:
    SAVE_REGS
    mov rdi, rsp
    test byte ptr [rsp + {CS}], 3
    jz from_hypervisor
    TRAP_FROM_GUEST_ELSEWHERE
    RESTORE_REGS
    add rsp, 8
24: iretq
25: lock inc qword ptr [rip + {NMIS_THAT_FAULTED}]
    jmp iret_fault
.pushsection ex_table, "a"
    .quad 24b, 25b
.popsection

// SYSCALL from ring 3, 64-bit code. Entered from: the per-CPU stub (idt.rs), which has stored rax in the ss slot and
// the guest's rsp in the rsp slot. CPU state: rcx = guest rip, r11 = guest rflags, interrupts off, DF and AC clear.
//
// Two ways are short, for every system call goes them: a program's into its kernel, and the kernel's `iret` back to it.
// No register is stored but those that change. They do what `from_guest::system_call` and `hypercall::iret` do in the case
// that each of their checks has the usual outcome; whatever is unusual goes the long way, before anything has changed.
// Registers: rax = current vCPU, rcx and r11 scratch. rsp = the error_code slot; the frame above it is the guest's,
// below it is the stack of faults.
.set AT_RIP, {RIP} - {ERROR_CODE}
.set AT_CS, {CS} - {ERROR_CODE}
.set AT_RFLAGS, {RFLAGS} - {ERROR_CODE}
.set AT_RSP, {RSP} - {ERROR_CODE}
.set AT_SS, {SS} - {ERROR_CODE}

// An access to the guest's memory. If it faults, the code at `fault` goes on.
.macro GUEST fault, instruction:vararg
17: \instruction
.pushsection ex_table, "a"
    .quad 17b, \fault
.popsection
.endm

.macro SYSCALL_ENTRY name, smap
.balign 16
.global \name
\name:
    push r11
    push {FLAT_RING3_CS64}
    push rcx
    push 0
    mov rax, [rsp + {CURRENT}]
    cmp byte ptr [rax + {KERNEL_MODE}], 0
    jne 20f

    // A system call. The long way: IOPL is shown; work, an NMI or records of the vCPU wait; it runs on a cache of its page
    // tables; its kernel takes no system calls, or with events let in; events are masked in user mode.
    mov rcx, [rax + {DOMAIN}]
    test byte ptr [rcx + {VM_ASSIST}], {ARCHITECTURAL_IOPL}
    jnz long_way
    cmp dword ptr [rsp + {PENDING}], 0
    jne long_way
    cmp byte ptr [rax + {NMI_PENDING}], 0
    jne long_way
    cmp byte ptr [rax + {STALE_AREAS}], 0
    jne long_way
    cmp qword ptr [rax + {VTLB}], 0
    jne long_way
    cmp byte ptr [rax + {SYSCALL_MASKS}], 0
    je long_way
    mov r11, [rax + {INFO}]
    cmp byte ptr [r11 + {UPCALL_MASK}], 0
    jne long_way
    // So does an entry point that is not in the upper half: 0 if there is none, and SYSRET must not see one that is not canonical.
    mov r11, [rax + {SYSCALL_ADDRESS}]
    sar r11, 47
    inc r11
    jnz long_way
    // And a stack that does not lie above the hypervisor's range with all seven words.
    mov rcx, [rax + {KERNEL_SP}]
    and rcx, -16
    movabs r11, {HYPERVISOR_VIRT_END} + 56
    cmp rcx, r11
    jb long_way
    mov byte ptr [rax + {KERNEL_MODE}], 1
    swapgs
    mov r11, [rax + {KERNEL_ROOT}]
    shl r11, 12
    mov cr3, r11
    .if \smap
    stac
    .endif
    // rcx r11 rip cs rflags rsp ss, as `bounce::plain` has them.
    mov r11, [rsp + AT_RIP]
    GUEST 19f, mov [rcx - 56], r11
    GUEST 19f, mov [rcx - 40], r11
    mov r11, [rsp + AT_RFLAGS]
    GUEST 19f, mov [rcx - 48], r11
    and r11, ~({IF} | {IOPL})
    or r11, {IF}
    GUEST 19f, mov [rcx - 24], r11
    GUEST 19f, mov qword ptr [rcx - 32], {FLAT_RING3_CS64}
    mov r11, [rsp + AT_RSP]
    GUEST 19f, mov [rcx - 16], r11
    GUEST 19f, mov qword ptr [rcx - 8], {FLAT_RING3_SS64}
    .if \smap
    clac
    .endif
    mov r11, [rax + {INFO}]
    mov byte ptr [r11 + {UPCALL_MASK}], 1
    sub rcx, 56
    mov [rsp + AT_RSP], rcx
    mov rcx, [rax + {SYSCALL_ADDRESS}]
    mov r11, [rsp + AT_RFLAGS]
    and r11, ~{CLEARED_ON_SYSCALL}
    mov rax, [rsp + AT_SS]
    mov rsp, [rsp + AT_RSP]
    sysretq

    // The stack is not writable (AC is clear by now): back to user mode. The long way meets the same.
19: mov byte ptr [rax + {KERNEL_MODE}], 0
    swapgs
    mov r11, [rax + {USER_ROOT}]
    shl r11, 12
    mov cr3, r11
    jmp long_way

    // A hypercall.
20: cmp qword ptr [rsp + AT_SS], {HYPERVISOR_IRET}
    jne other_hypercall
    // The long way: no user mode; it runs on a cache of its page tables; IOPL is shown; the frame (rax r11 rcx flags rip cs rflags
    // rsp ss) does not lie above the hypervisor's range; it is not for user mode with events let in; or rcx and r11 stay.
    cmp qword ptr [rax + {USER_ROOT}], 0
    je long_way
    cmp qword ptr [rax + {VTLB}], 0
    jne long_way
    mov rcx, [rax + {DOMAIN}]
    test byte ptr [rcx + {VM_ASSIST}], {ARCHITECTURAL_IOPL}
    jnz long_way
    mov rcx, [rsp + AT_RSP]
    cmp rcx, -72
    ja long_way
    movabs r11, {HYPERVISOR_VIRT_END}
    cmp rcx, r11
    jb long_way
    .if \smap
    stac
    .endif
    GUEST long_way, test dword ptr [rcx + 24], {VGCF_IN_SYSCALL}
    jnz 21f
    GUEST long_way, movzx r11d, word ptr [rcx + 40]
    mov [rsp + AT_CS], r11
    inc r11d
    test r11b, 3
    jnz 21f
    GUEST long_way, mov r11, [rcx + 48]
    test r11d, {IF}
    jz 21f
    and r11, ~({IOPL} | {VM})
    or r11, {FIXED}
    mov [rsp + AT_RFLAGS], r11
    GUEST 23f, mov r11, [rcx + 32]
    mov [rsp + AT_RIP], r11
    GUEST 23f, movzx r11d, word ptr [rcx + 64]
    or r11d, 3
    mov [rsp + AT_SS], r11
    GUEST 23f, mov r11, [rcx]
    mov [rsp], r11
    GUEST 23f, mov r11, [rcx + 56]
    mov [rsp + AT_RSP], r11
    GUEST 23f, mov r11, [rcx + 8]
    GUEST 23f, mov rcx, [rcx + 16]
    .if \smap
    clac
    .endif
    mov byte ptr [rax + {KERNEL_MODE}], 0
    mov byte ptr [rax + {NMI_MASKED}], 0
    mov rax, [rax + {INFO}]
    mov byte ptr [rax + {UPCALL_MASK}], 0
    swapgs
    // Loading CR3 serialises: whoever makes an event pending after the look below sees that it is not masked.
    mov rax, [rsp + {CURRENT}]
    mov rax, [rax + {USER_ROOT}]
    shl rax, 12
    mov cr3, rax
    // As `exit::is_quiet`.
    cmp dword ptr [rsp + {PENDING}], 0
    jne iret_with_work
    mov rax, [rsp + {CURRENT}]
    cmp byte ptr [rax + {NMI_PENDING}], 0
    jne iret_with_work
    mov rax, [rax + {INFO}]
    cmp byte ptr [rax + {UPCALL_PENDING}], 0
    jne iret_with_work
    mov rax, [rsp]
    add rsp, 8
22: iretq
.pushsection ex_table, "a"
    .quad 22b, iret_fault
.popsection
    // Another vCPU has taken the frame away meanwhile (AC is clear by now): the long way meets the same.
23: mov [rsp + AT_RSP], rcx
    mov qword ptr [rsp + AT_SS], {HYPERVISOR_IRET}
    jmp long_way
21: .if \smap
    clac
    .endif
    jmp long_way
.endm

SYSCALL_ENTRY syscall_entry_64, 0
SYSCALL_ENTRY syscall_entry_64_smap, 1

// The short way back has found work: the rest of the frame is stored, for the way that everybody goes.
iret_with_work:
    mov rax, [rsp]
    mov qword ptr [rsp], 0
    PUSH_REGS
    jmp return_to_guest

// The long way of what could not go the short one, which has changed rcx and r11, and for `iret` what that sets in the frame.
long_way:
    mov qword ptr [rsp], 0
    mov rcx, [rsp + AT_RIP]
    mov r11, [rsp + AT_RFLAGS]
// Most often the frame's rbx, rbp and r12 to r15 are still in the registers on the way out.
other_hypercall:
    mov dword ptr [rsp + 4], {TRAP_SYSCALL}
    mov rax, [rsp + AT_SS]
    mov qword ptr [rsp + AT_SS], {FLAT_RING3_SS64}
    PUSH_REGS
    mov rdi, rsp
    sub rsp, 8
.global call_syscall_from_guest
call_syscall_from_guest:                    // with `ac-check`, of checked_syscall_from_guest
    call {syscall_from_guest}
    add rsp, 8
    cmp eax, {SYSRET_KEPT}
    jne return_as_told
    mov r10, [rsp + {R10}]
    mov r9, [rsp + {R9}]
    mov r8, [rsp + {R8}]
    mov rax, [rsp + {RAX}]
    mov rdx, [rsp + {RDX}]
    mov rsi, [rsp + {RSI}]
    mov rdi, [rsp + {RDI}]
    mov rcx, [rsp + {RIP}]
    mov r11, [rsp + {RFLAGS}]
    mov rsp, [rsp + {RSP}]
    sysretq

// SYSCALL from ring 3, 32-bit code (AMD only). As above.
.global syscall_entry_32
syscall_entry_32:
    push r11
    push {FLAT_RING3_CS32}
    push rcx
    push 0
    mov dword ptr [rsp + 4], {TRAP_SYSCALL}
    mov rax, [rsp + {SS} - {ERROR_CODE}]
    mov qword ptr [rsp + {SS} - {ERROR_CODE}], {FLAT_RING3_SS64}
    SAVE_REGS
    mov rdi, rsp
    sub rsp, 8
    call {syscall32_from_guest}
    add rsp, 8
    jmp return_to_guest

// SYSENTER from ring 3 (Intel). Entered with rsp = IA32_SYSENTER_ESP = end of the frame; the CPU saved nothing.
// EFLAGS is cleaned first: NT would make IRET fault, TF would single-step us, AC would let us touch the guest's pages.
.global sysenter_entry
sysenter_entry:
    push {FLAT_RING3_SS64}
    push 0
    push 0x202
    push 3
    push 0
    push 0
    push 2
    popfq
    mov dword ptr [rsp + 4], {TRAP_SYSCALL}
    SAVE_REGS
    mov rdi, rsp
    sub rsp, 8
    call {sysenter_from_guest}
    add rsp, 8

// Starts this CPU's first guest: forgets the boot stack and goes the way of every return.
.global enter_guest
enter_guest:
    or rsp, {STACK_MASK}
    sub rsp, {GUEST_REGS_FROM_TOP} - 1
    jmp return_to_guest

// The one way back to ring 3. rsp = CpuInfo.guest_regs. exit_work may switch to another vCPU, whose registers then lie
// there, and says in eax whether SYSRET may be used: the guest's rcx and r11 are dead and the frame is one that SYSRET
// can express.
.global return_to_guest
return_to_guest:
    mov rdi, rsp
    sub rsp, 8
.global call_exit_work
call_exit_work:                             // with `ac-check`, of checked_exit_work
    call {exit_work}
    add rsp, 8
return_as_told:
    test eax, eax
    jz 2f
    RESTORE_REGS
    mov rcx, [rsp + 8]
    mov r11, [rsp + 24]
    mov rsp, [rsp + 32]
    sysretq
2:  RESTORE_REGS
    add rsp, 8
3:  iretq
.pushsection ex_table, "a"
    .quad 3b, iret_fault
.popsection

// The IRETQ above, or one of the shorter ways, faulted: the guest's cs, ss, rip or flags were not loadable. The exception handler resumed here with
// the guest's general registers restored and rsp at the rip slot. Becomes the failsafe callback.
iret_fault:
    push 0
    mov dword ptr [rsp + 4], 13
    SAVE_REGS
    mov rdi, rsp
    sub rsp, 8
    call {iret_fault_from_guest}
    add rsp, 8
    jmp return_to_guest

// Copies from and to guest memory: the only code that may touch pages of ring 3. Each exists twice. Without SMAP the plain
// one runs; with SMAP its first bytes are overwritten at boot by a jump to the other one (patches.rs), which lets itself
// in by STAC. A fault resumes with AC clear (`trap_from_hypervisor`), so only the way without a fault needs a CLAC.
.macro ACCESSOR name, smap
.balign 16
.global \name
\name:
    .if \smap
    stac
    .endif
.endm
.macro ACCESSED smap
    .if \smap
    clac
    .endif
.endm

// guest_copy copies rdx bytes from [rsi] to [rdi]; one of the two is guest memory and may fault.
// Returns rax = bytes not copied (rounded up to the words not copied). Clobbers rcx, rdx, rsi, rdi.
.macro GUEST_COPY name, smap
ACCESSOR \name, \smap
    mov rcx, rdx
    and edx, 7
    shr rcx, 3
4:  rep movsq
    mov ecx, edx
5:  rep movsb
    ACCESSED \smap
    xor eax, eax
    ret
6:  lea rax, [rdx + rcx * 8]
    ret
7:  mov rax, rcx
    ret
.pushsection ex_table, "a"
    .quad 4b, 6b
    .quad 5b, 7b
.popsection
.endm
GUEST_COPY guest_copy, 0
GUEST_COPY guest_copy_smap, 1

// guest_copy_words copies rdx 8-byte words from [rsi] upwards to [rdi] upwards; one of the two is guest memory and may
// fault. rax = 0, or 1 if it faulted. Clobbers rcx, rsi, rdi.
.macro GUEST_COPY_WORDS name, smap
ACCESSOR \name, \smap
    mov rcx, rdx
8:  rep movsq
    ACCESSED \smap
    xor eax, eax
    ret
9:  mov eax, 1
    ret
.pushsection ex_table, "a"
    .quad 8b, 9b
.popsection
.endm
GUEST_COPY_WORDS guest_copy_words, 0
GUEST_COPY_WORDS guest_copy_words_smap, 1

// Reads a value at [rdi]. rax = value, rdx = 0, or rdx = 1 if it faulted.
.macro GUEST_READER name, reg, smap
ACCESSOR \name, \smap
10: mov \reg, [rdi]
    ACCESSED \smap
    xor edx, edx
    ret
11: xor eax, eax
    mov edx, 1
    ret
.pushsection ex_table, "a"
    .quad 10b, 11b
.popsection
.endm
GUEST_READER guest_read_u64, rax, 0
GUEST_READER guest_read_u64_smap, rax, 1
GUEST_READER guest_read_u32, eax, 0
GUEST_READER guest_read_u32_smap, eax, 1

// Stores rsi, or a part of it, to [rdi]. rax = 0, or 1 if it faulted.
.macro GUEST_WRITER name, reg, smap
ACCESSOR \name, \smap
12: mov [rdi], \reg
    ACCESSED \smap
    xor eax, eax
    ret
13: mov eax, 1
    ret
.pushsection ex_table, "a"
    .quad 12b, 13b
.popsection
.endm
GUEST_WRITER guest_write_u64, rsi, 0
GUEST_WRITER guest_write_u64_smap, rsi, 1
GUEST_WRITER guest_write_u16, si, 0
GUEST_WRITER guest_write_u16_smap, si, 1

// Each plain one and the one that takes its place with SMAP.
.pushsection .rodata.guest_accessors, "a"
.balign 8
.global guest_accessors
guest_accessors:
    .quad guest_copy, guest_copy_smap
    .quad guest_copy_words, guest_copy_words_smap
    .quad guest_read_u64, guest_read_u64_smap
    .quad guest_read_u32, guest_read_u32_smap
    .quad guest_write_u64, guest_write_u64_smap
    .quad guest_write_u16, guest_write_u16_smap
.global guest_accessors_end
guest_accessors_end:
.popsection

// `ac-check`: what the two functions below are called by then. AC must be clear when they are done; whoever left it set
// could touch pages of ring 3 without being noticed.
.global checked_syscall_from_guest
checked_syscall_from_guest:
    sub rsp, 8
    call {syscall_from_guest}
    jmp check_ac
.global checked_exit_work
checked_exit_work:
    sub rsp, 8
    call {exit_work}
check_ac:
    pushfq
    test dword ptr [rsp], {AC}
    jnz 16f
    add rsp, 16
    ret
16: popfq
    clac
    call {ac_left_set}
    ud2

// Loads a selector (edi) into GS of the guest's user mode: swapgs, load, swapgs. rax = 0, or 1 if the selector was bad
// (GS is then null).
.global load_user_gs
load_user_gs:
    swapgs
14: mov gs, edi
    swapgs
    xor eax, eax
    ret
15: xor edi, edi
    mov gs, edi
    swapgs
    mov eax, 1
    ret
.pushsection ex_table, "a"
    .quad 14b, 15b
.popsection

// Loads selectors (edi) into ds, es or fs. rax = 0, or 1 if bad (the register is then null).
.macro SELECTOR_LOADER name, reg
.global \name
\name:
90: mov \reg, edi
    xor eax, eax
    ret
91: xor edi, edi
    mov \reg, edi
    mov eax, 1
    ret
.pushsection ex_table, "a"
    .quad 90b, 91b
.popsection
.endm
SELECTOR_LOADER load_ds, ds
SELECTOR_LOADER load_es, es
SELECTOR_LOADER load_fs, fs
