/* Entry of a test kernel, its Xen notes, the entry points that it registers, and its way back from them. */
#include "abi.h"

	.section .note.Xen, "a", @note
	.macro note type:req, kind:req, value:vararg
	.balign 4
	.long 4, 92f - 91f, \type
	.asciz "Xen"
91:	\kind \value
92:	.balign 4
	.endm
	note 5, .asciz, "xen-3.0"
	note 6, .asciz, "test guest"
	note 8, .asciz, "generic"
	note 9, .asciz, "yes"
	note 1, .quad, _start
	note 2, .quad, hypercall_page
	note 3, .quad, VIRT_BASE
	note 4, .quad, 0
	note 10, .asciz, "!writable_page_tables|pae_pgdir_above_4gb"
	note 17, .long, 0x8801

	.section .text.start, "ax"
	.globl _start
_start:
	/* From the hypervisor: RSI = start_info, RSP = boot stack, the rest zero. All is kept, for the test of just that. */
	.set	slot, 0
	.irp	reg, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
	mov	%\reg, entry_regs + slot(%rip)
	.set	slot, slot + 8
	.endr
	.irp	reg, cs, ss, ds, es, fs, gs
	mov	%\reg, %eax
	mov	%rax, entry_regs + slot(%rip)
	.set	slot, slot + 8
	.endr
	pushf
	popq	entry_regs + slot(%rip)
	lea	stack_top(%rip), %rsp
	mov	%rsi, %rdi
	call	guest_main
	ud2

	.balign 4096
	.globl hypercall_page
hypercall_page:
	.skip 4096

	.text
/*
 * Entered from: the hypervisor, with a frame on the kernel stack: rcx, r11, [error code,] rip, cs, rflags, rsp, ss.
 * Makes a struct frame of it and calls on_entry; leaves to where the frame then says.
 */
	.macro entry number:req, has_error=0
	.balign 16
	.globl entry_\number
entry_\number:
	pop	%rcx
	pop	%r11
	.if !\has_error
	push	$0
	.endif
	push	$\number
	jmp	entry_common
	.endm

	.macro exceptions from:req, to:req
	.set	number, \from
	.rept	\to - \from + 1
	.altmacro
	exception %number
	.noaltmacro
	.set	number, number + 1
	.endr
	.endm
	.macro exception n
	.if \n == 8 || (\n >= 10 && \n <= 14) || \n == 17 || \n == 21
	entry	\n, 1
	.else
	entry	\n
	.endif
	.endm
	exceptions 0, 31
	entry	128
	entry	129
	entry	130
	entry	256
	entry	257
	entry	258

entry_common:
	push	%rax
	push	%rcx
	push	%rdx
	push	%rbx
	push	%rbp
	push	%rsi
	push	%rdi
	push	%r8
	push	%r9
	push	%r10
	push	%r11
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	cld
	mov	%rsp, %rdi
	mov	%rsp, %rbx
	and	$-16, %rsp
	call	on_entry
	mov	%rbx, %rsp

/* Leaves to the struct frame at RSP, by the iret hypercall: it takes rax, r11, rcx, flags, rip, cs, rflags, rsp, ss. */
	.globl leave
leave:
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%r11
	pop	%r10
	pop	%r9
	pop	%r8
	pop	%rdi
	pop	%rsi
	pop	%rbp
	pop	%rbx
	pop	%rdx
	pop	%rcx
	pop	%rax
	add	$16, %rsp
	push	iret_flags(%rip)
	push	%rcx
	push	%r11
	push	%rax
	mov	$HC_iret, %eax
	syscall
	ud2

/* void enter(struct frame *to): goes there; returns when something calls resume(). */
	.globl enter
enter:
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	mov	%rsp, entered_from(%rip)
	/* The frame is left below this stack, so copy it. */
	sub	$8*22, %rsp
	mov	%rdi, %rsi
	mov	%rsp, %rdi
	mov	$22, %ecx
	rep	movsq
	jmp	leave

/* void resume(void): continues behind the last enter(); called on any stack. */
	.globl resume
resume:
	mov	entered_from(%rip), %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret

	.bss
	.balign 16
	.skip 16384
	.globl entry_stack_top
entry_stack_top:
	.skip 32768
	.globl stack_top
stack_top:
	.globl entry_regs
entry_regs:
	.skip 8 * 23
entered_from:
	.skip 8
	.globl iret_flags
iret_flags:
	.skip 8
	.section .note.GNU-stack, "", @progbits
