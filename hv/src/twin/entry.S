// Into a twin, out of it, and what its gates share. Symbols in braces are constants that Rust fills in (entry.rs).
//
// A twin runs with interrupts on, on a stack that is not the hypervisor's, with the IDT whose vectors all have stacks of
// their own. The hypervisor's stack pointer waits in the instance's save page; the stubs (twin_runtime::stubs), which know
// where that is, load it before they come here. Gates run with interrupts off, as the rest of the hypervisor.

.section .text.twin, "ax"

// Back into the twin with a result in rax, on its own stack: of the registers that a call does not preserve it finds nothing but that.
.macro RETURN_TO_TWIN
    xor ecx, ecx
    xor edx, edx
    xor esi, esi
    xor edi, edi
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    sti
    ret
.endm

// u64 twin_enter(u64 *save, Running *running, u64 stack, u64 stub, const u64 *args): enters the twin, as an Entry (entry.rs) says. Returns
// what twin_leave was left with in rax. Entered from: Rust. CPU state: mirror root and the twins' IDT loaded, interrupts off, DF clear.
// Every register that the twin is not given is cleared. On the stack, where gates find it: save page, running.
.global twin_enter
twin_enter:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rsi
    push rdi
    mov [rdi + {SAVE_HOST_RSP}], rsp
    mov rsp, rdx
    mov r11, rcx
    mov rax, r8
    mov rdi, [rax]
    mov rsi, [rax + 8]
    mov rdx, [rax + 16]
    mov rcx, [rax + 24]
    mov r8, [rax + 32]
    mov r9, [rax + 40]
    xor eax, eax
    xor ebx, ebx
    xor ebp, ebp
    xor r10d, r10d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    // The stub clears r11 and jumps to the function, whose return address is on the stack already.
    sti
    jmp r11

// u64 twin_resume(const Resume *resume, Running *running): goes back into the twin from the gate where it waited. Returns as twin_enter.
// Entered from: Rust. CPU state: as twin_enter. The twin gets rax and what a call preserves.
.global twin_resume
twin_resume:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    mov rax, [rdi + {RESUME_SAVE}]
    push rsi
    push rax
    mov [rax + {SAVE_HOST_RSP}], rsp
    mov rsp, [rdi + {RESUME_KEPT}]
    mov rbx, [rdi + {RESUME_KEPT} + 8]
    mov rbp, [rdi + {RESUME_KEPT} + 16]
    mov r12, [rdi + {RESUME_KEPT} + 24]
    mov r13, [rdi + {RESUME_KEPT} + 32]
    mov r14, [rdi + {RESUME_KEPT} + 40]
    mov r15, [rdi + {RESUME_KEPT} + 48]
    mov rax, [rdi + {RESUME_VALUE}]
    RETURN_TO_TWIN

// The end of an invocation, or of a part of it: by return of the first function, by a gate's answer, or because the exception handler
// resumed here. rsp = what twin_enter saved.
.global twin_leave
twin_leave:
    cli
    cld
    add rsp, 16
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret

// An import was called. Entered from: the imports' common stub, interrupts on. rsp = what twin_enter saved (8 modulo 16), eax = its
// number, r11 = the Rust function that serves it, DF clear; rbx, rbp, r12 to r15 = the twin's, kept by that function as by any. Stack
// picture of an ImportCall (entry.rs): the six arguments, the number; above it save page and running. The Rust function returns
// eax = RETURN and rdx = the result; or WAIT and rdx = address of a Kept; or ABORT.
.global twin_import
twin_import:
    cli
    push rax
    push r9
    push r8
    push rcx
    push rdx
    push rsi
    push rdi
    mov rdi, rsp
    mov rsi, [rsp + {CALL_BYTES} + 8]
    call r11
    mov rcx, [rsp + {CALL_BYTES}]
    cmp eax, {RETURN}
    jne 4f
    mov rax, rdx
    mov rsp, [rcx + {SAVE_TWIN_RSP}]
    RETURN_TO_TWIN
4:  add rsp, {CALL_BYTES}
    mov rcx, rdx
    jmp 8f

// A special gate was called. Entered from: the gates' common stub, interrupts on. rsp = what twin_enter saved (8 modulo 16), eax = the stub's
// number; rbx, rbp, r12 to r15 = the twin's, kept by the Rust function as by any. Stack picture of a Saved (entry.rs): number
// or, on the way back, the twin's rsp; where to enter; then Registers: rax rcx rdx rsi rdi r8 r9 r10 r11.
.global twin_gate
twin_gate:
    cli
    cld
    push r11
    push r10
    push r9
    push r8
    push rdi
    push rsi
    push rdx
    push rcx
    sub rsp, 16
    push rax
    mov rdi, rsp
    call {gate}
    cmp eax, {ABORT}
    jae 2f
    mov rcx, [rsp + 24]
    mov rdx, [rsp + 32]
    mov rsi, [rsp + 40]
    mov rdi, [rsp + 48]
    mov r8, [rsp + 56]
    mov r9, [rsp + 64]
    mov r10, [rsp + 72]
    cmp eax, {ENTER}
    mov rax, [rsp + 16]
    je 1f
    mov r11, [rsp + 80]
    mov rsp, [rsp]
    sti
    ret
    // The stub there clears r11.
1:  mov r11, [rsp + 8]
    mov rsp, [rsp]
    sti
    jmp r11
    // It waits: what a call preserves goes to a Kept.
2:  mov rcx, [rsp + 8]
    lea rsp, [rsp + {SAVED_BYTES}]
    // eax = WAIT, and rcx says where; or ABORT.
8:  cmp eax, {ABORT}
    je 3f
    mov [rcx + 8], rbx
    mov [rcx + 16], rbp
    mov [rcx + 24], r12
    mov [rcx + 32], r13
    mov [rcx + 40], r14
    mov [rcx + 48], r15
3:  xor eax, eax
    jmp twin_leave

// u64 twin_exchange_u32(u64 address, u32 old, u32 new), twin_exchange_u64: lock cmpxchg on domain memory that may not be
// there. rax = what was there, rdx = 0; or rdx = 1 if it faulted.
.global twin_exchange_u32
twin_exchange_u32:
    mov ecx, edx
    mov eax, esi
    xor edx, edx
5:  lock cmpxchg [rdi], ecx
    ret
.global twin_exchange_u64
twin_exchange_u64:
    mov rcx, rdx
    mov rax, rsi
    xor edx, edx
6:  lock cmpxchg [rdi], rcx
    ret
7:  mov edx, 1
    ret
.pushsection ex_table, "a"
    .quad 5b, 7b
    .quad 6b, 7b
.popsection

// u64 twin_read_device(u64 address, u32 bytes): one access of 1, 2 or 4 bytes to a register that may not be there.
// rax = what it says, rdx = 0; or rdx = 1 if it faulted.
.global twin_read_device
twin_read_device:
    xor eax, eax
    xor edx, edx
    cmp esi, 2
    ja 3f
    je 2f
1:  mov al, [rdi]
    ret
2:  mov ax, [rdi]
    ret
3:  mov eax, [rdi]
    ret
// u32 twin_write_device(u64 address, u32 bytes, u32 value): the same. rax = 0, or 1 if it faulted.
.global twin_write_device
twin_write_device:
    xor eax, eax
    cmp esi, 2
    ja 6f
    je 5f
4:  mov [rdi], dl
    ret
5:  mov [rdi], dx
    ret
6:  mov [rdi], edx
    ret
7:  mov edx, 1
    ret
8:  mov eax, 1
    ret
.pushsection ex_table, "a"
    .quad 1b, 7b
    .quad 2b, 7b
    .quad 3b, 7b
    .quad 4b, 8b
    .quad 5b, 8b
    .quad 6b, 8b
.popsection
