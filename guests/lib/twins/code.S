/*
 * Functions of a twin image as docs/sandbox.md wants them, mirror mode, counted. They are copied into images, so what they
 * refer to is named by its distance from the code.
 */
	.set	CONTEXT, code - 0x20000
	.set	CONSTANTS, code - 0x1e000
	.set	BUDGET, CONTEXT
	.set	MASK, CONSTANTS
	.set	DELTA, CONSTANTS + 0x10
	.set	PERCPU_ADDRESS, CONSTANTS + 0x20
	.set	ICALL, CONSTANTS + 0x88
	.set	WARN, CONSTANTS + 0x90
	.set	IMPORTS, code - 0x1d000

	/* A function: its record is two offsets; its start is a label. */
	.macro	function name
	.globl	\name
\name:
	.pushsection .rodata.twin_functions, "a"
	.long	\name - code, \name\()_end - code
	.popsection
	.endm
	/* Another label; 0x80000000 says that a charge stands there. */
	.macro	label flags=0
	.pushsection .rodata.twin_labels, "a"
	.long	9f - code, \flags
	.popsection
9:
	.endm
	.set	CHARGE, 0x80000000

	.section .rodata.twin_functions, "a"
	.globl	twin_functions
	.balign	4
twin_functions:
	.section .rodata.twin_labels, "a"
	.globl	twin_labels
	.balign	4
twin_labels:

	.section .rodata.twin_code, "a"
	.globl	code
	.balign	16
code:
	/* u64 twin_read(u64 *address) */
	function twin_read
	and	MASK(%rip), %rdi
	mov	(%rdi), %rax
	ret
twin_read_end:

	/* u64 twin_write(u64 *address, u64 value): returns what is there then. */
	function twin_write
	and	MASK(%rip), %rdi
	mov	%rsi, (%rdi)
	mov	(%rdi), %rax
	ret
twin_write_end:

	/* u64 twin_six(a, b, c, d, e, f): the arguments, told apart. */
	function twin_six
	lea	(%rdi, %rsi, 2), %rax
	lea	(%rax, %rdx, 4), %rax
	lea	(%rax, %rcx, 8), %rax
	shl	$4, %r8
	add	%r8, %rax
	shl	$5, %r9
	add	%r9, %rax
	ret
twin_six_end:

	/* u64 twin_leftovers(void): what the registers hold that carry no argument. */
	function twin_leftovers
	or	%rbx, %rax
	or	%rbp, %rax
	or	%r10, %rax
	or	%r11, %rax
	or	%r12, %rax
	or	%r13, %rax
	or	%r14, %rax
	or	%r15, %rax
	ret
twin_leftovers_end:

	/* u64 twin_below(void): what lies below the stack pointer. */
	function twin_below
	sub	$256, %rsp
	xor	%eax, %eax
	or	(%rsp), %rax
	or	64(%rsp), %rax
	or	128(%rsp), %rax
	or	248(%rsp), %rax
	add	$256, %rsp
	ret
twin_below_end:

	/* u64 twin_variable(u64 value): through a variable whose address is taken. */
	function twin_variable
	sub	$16, %rsp
	mov	DELTA(%rip), %rcx
	mov	%rdi, 8(%rsp, %rcx)
	lea	8(%rsp, %rcx), %rdx
	and	MASK(%rip), %rdx
	mov	(%rdx), %rax
	add	$16, %rsp
	ret
twin_variable_end:

	/* u64 twin_percpu(void) */
	function twin_percpu
	mov	PERCPU_ADDRESS(%rip), %rax
	ret
twin_percpu_end:

	/* u64 twin_count(u64 n): a loop of n rounds, each charged. */
	function twin_count
	xor	%eax, %eax
	label	CHARGE
	decq	BUDGET(%rip)
	js	2f
	inc	%rax
	cmp	%rdi, %rax
	jb	9b
	ret
2:
	.pushsection .rodata.twin_labels, "a"
	.long	2b - code, 0
	.popsection
	ud2
twin_count_end:

	/* twin_recurse(void): calls itself for ever, with the largest frame. */
	function twin_recurse
	decq	BUDGET(%rip)
	js	2f
	sub	$4080, %rsp
	call	twin_recurse
	add	$4080, %rsp
	ret
2:
	.pushsection .rodata.twin_labels, "a"
	.long	2b - code, 0
	.popsection
	ud2
twin_recurse_end:

	/* A BUG of the driver. */
	function twin_bug
	ud2
twin_bug_end:

	/* A division by zero. */
	function twin_divide
	xor	%edx, %edx
	xor	%ecx, %ecx
	div	%rcx
	ret
twin_divide_end:

	/* u64 twin_warn(u64 value): a WARN keeps the registers. */
	function twin_warn
	mov	%rdi, %rax
	call	*WARN(%rip)
	ret
twin_warn_end:

	/* u64 twin_indirect(u64 function, u64 a): calls what the domain's address stands for. */
	function twin_indirect
	mov	%rdi, %r11
	mov	%rsi, %rdi
	call	*ICALL(%rip)
	inc	%rax
	ret
twin_indirect_end:

	/* twin_deep_fault(void): an exception with the stack pointer in the guard. */
	function twin_deep_fault
	decq	BUDGET(%rip)
	js	2f
	sub	$4080, %rsp
	cmp	$1, %rdi
	jbe	3f
	dec	%rdi
	call	twin_deep_fault
	add	$4080, %rsp
	ret
2:
	.pushsection .rodata.twin_labels, "a"
	.long	2b - code, 0
	.popsection
	ud2
3:
	.pushsection .rodata.twin_labels, "a"
	.long	3b - code, 1
	.popsection
	ud2
twin_deep_fault_end:
	/* twin_hammer(u64 *page, u64 n): writes to the page n times. */
	function twin_hammer
	xor	%ecx, %ecx
	label	CHARGE
	decq	BUDGET(%rip)
	js	2f
	inc	%rcx
	mov	%rdi, %rax
	and	MASK(%rip), %rax
	mov	%rcx, (%rax)
	cmp	%rsi, %rcx
	jb	9b
	ret
2:
	.pushsection .rodata.twin_labels, "a"
	.long	2b - code, 0
	.popsection
	ud2
twin_hammer_end:

	/* u64 twin_upcall(a, b, c, d, e, f): what import 0 returns for them and 77, 78, added to a. */
	function twin_upcall
	push	%rbx
	push	%rbp
	push	%r12
	mov	%rdi, %rbx
	sub	$16, %rsp
	movq	$77, (%rsp)
	movq	$78, 8(%rsp)
	mov	$0x1234, %ebp
	mov	$0x5678, %r12d
	call	*IMPORTS(%rip)
	add	$16, %rsp
	add	%rbx, %rax
	sub	$0x1234, %rbp
	add	%rbp, %rax
	sub	$0x5678, %r12
	add	%r12, %rax
	or	%rcx, %rax
	or	%rdx, %rax
	or	%rsi, %rax
	or	%rdi, %rax
	or	%r8, %rax
	or	%r9, %rax
	or	%r10, %rax
	or	%r11, %rax
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
twin_upcall_end:

	/* u64 twin_upcalls(u64 n): import 0, called n times; the sum of what it returned. */
	function twin_upcalls
	push	%rbx
	push	%rbp
	mov	%rdi, %rbx
	xor	%ebp, %ebp
	label	CHARGE + 2
	decq	BUDGET(%rip)
	js	2f
	mov	%rbx, %rdi
	call	*IMPORTS(%rip)
	add	%rax, %rbp
	dec	%rbx
	jnz	9b
	mov	%rbp, %rax
	pop	%rbp
	pop	%rbx
	ret
2:
	.pushsection .rodata.twin_labels, "a"
	.long	2b - code, 2
	.popsection
	ud2
twin_upcalls_end:

	/* twin_scatter(u8 *base, u64 mask, u64 seed, u64 n): n stores at base plus some number, of which the mask is left. */
	function twin_scatter
	xor	%eax, %eax
	label	CHARGE
	decq	BUDGET(%rip)
	js	2f
	imul	$0x5851f42d, %rdx, %rdx
	add	$0x14057b7f, %rdx
	mov	%rdx, %rax
	shr	$16, %rax
	and	%rsi, %rax
	add	%rdi, %rax
	and	MASK(%rip), %rax
	mov	%rdx, (%rax)
	dec	%rcx
	jnz	9b
	ret
2:
	.pushsection .rodata.twin_labels, "a"
	.long	2b - code, 0
	.popsection
	ud2
twin_scatter_end:

	/* twin_import_N(...): import N. */
	.macro	import n
	function twin_import_\n
	call	*IMPORTS + 8 * \n(%rip)
	ret
twin_import_\n\()_end:
	.endm
	import	1
	import	2
	import	3
	import	4
	import	5
	import	6
	import	7
	.globl	code_end
code_end:

	.section .rodata.twin_functions, "a"
	.globl	twin_functions_end
twin_functions_end:
	.section .rodata.twin_labels, "a"
	.globl	twin_labels_end
twin_labels_end:

	/* A loop that is not charged. Its label is its start. */
	.section .rodata.twin_spin, "a"
	.globl	spin_code, spin_code_end
spin_code:
	jmp	spin_code
spin_code_end:

	/* An access whose address was not masked: refused. */
	.section .rodata.twin_bad, "a"
	.globl	bad_code, bad_code_end
bad_code:
	xor	%eax, %eax
	mov	(%rdi), %rax
	ret
bad_code_end:
