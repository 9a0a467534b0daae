/*
 * Functions of a twin image in stlb mode, counted: each address is looked up in the twin's table, and what is not there is asked
 * for at a gate.
 */
	.set	CONTEXT, code - 0x20000
	.set	CONSTANTS, code - 0x1e000
	.set	BUDGET, CONTEXT
	.set	MISS_ADDRESS, CONTEXT + 8
	.set	MISS_RESULT, CONTEXT + 16
	.set	DELTA, CONSTANTS + 0x10
	.set	STLB_MISS, CONSTANTS + 0x80
	.set	IMPORTS, code - 0x1d000
	.set	STLB, code - 0x10000

	/* A function: its record is two offsets; its start is a label. */
	.macro	function name
	.globl	\name
\name:
	.pushsection .rodata.stlb_functions, "a"
	.long	\name - code, \name\()_end - code
	.popsection
	.endm
	/* A label of that name and state. */
	.macro	place name state=0
	.pushsection .rodata.stlb_labels, "a"
	.long	\name - code, \state
	.popsection
\name:
	.endm
	/* States as in image.c: a window in rdi, with an empty frame, two saved registers, two words. */
	.set	CHARGE, 0x80000000
	.set	SAVED, 2
	.set	WINDOW, 3
	.set	WINDOW_SAVED, 4
	.set	WINDOW_WORDS, 5
	.set	WORDS, 6

	/* The domain's address in rdi becomes where the twin has it; rax is the address then, rcx and r8 are lost. */
	.macro	look_up name state=WINDOW
	mov	%rdi, %rax
	lea	STLB(%rip), %r8
	mov	%edi, %ecx
	shr	$8, %ecx
	and	$0xfff0, %ecx
	xor	(%r8, %rcx), %rdi
	cmp	$0xfff, %rdi
	ja	\name\()_miss
	add	8(%r8, %rcx), %rdi
	place	\name\()_found \state
	.endm
	/* To stand behind the function's end: what it does if the page is not in the table. */
	.macro	missed name state=0
	place	\name\()_miss \state
	mov	%rax, MISS_ADDRESS(%rip)
	call	*STLB_MISS(%rip)
	mov	MISS_RESULT(%rip), %rdi
	jmp	\name\()_found
	.endm

	.section .rodata.stlb_functions, "a"
	.globl	stlb_functions
	.balign	4
stlb_functions:
	.section .rodata.stlb_labels, "a"
	.globl	stlb_labels
	.balign	4
stlb_labels:

	.section .rodata.stlb_code, "a"
	.globl	stlb_code
	.balign	16
stlb_code:
code:
	/* u64 stlb_read(u64 *address) */
	function stlb_read
	look_up	read
	mov	(%rdi), %rax
	ret
	missed	read
stlb_read_end:

	/* u64 stlb_write(u64 *address, u64 value): returns what is there then. */
	function stlb_write
	look_up	write
	mov	%rsi, (%rdi)
	mov	(%rdi), %rax
	ret
	missed	write
stlb_write_end:

	/* u64 stlb_reach(u8 *address): the word as far behind it as a window reaches. */
	function stlb_reach
	look_up	reach
	mov	4088(%rdi), %rax
	ret
	missed	reach
stlb_reach_end:

	/* u64 stlb_variable(u64 value): through a variable whose address is taken. */
	function stlb_variable
	sub	$16, %rsp
	mov	DELTA(%rip), %rcx
	mov	%rdi, 8(%rsp, %rcx)
	lea	8(%rsp, %rcx), %rdi
	look_up	variable WINDOW_WORDS
	mov	(%rdi), %rax
	add	$16, %rsp
	ret
	missed	variable WORDS
stlb_variable_end:

	/* u64 stlb_kept(u64 *address): what is there before import 0 is called, and, by the same window, after it; added. */
	function stlb_kept
	push	%rbx
	push	%rbp
	look_up	kept WINDOW_SAVED
	mov	%rdi, %rbx
	mov	(%rbx), %rbp
	call	*IMPORTS(%rip)
	add	(%rbx), %rbp
	mov	%rbp, %rax
	pop	%rbp
	pop	%rbx
	ret
	missed	kept SAVED
stlb_kept_end:

	/* u64 stlb_sweep(u8 *base, u64 stride, u64 n): the sum of n words. */
	function stlb_sweep
	mov	%rdi, %r9
	xor	%r10d, %r10d
	place	sweep_next CHARGE
	decq	BUDGET(%rip)
	js	sweep_over
	mov	%r9, %rdi
	look_up	sweep
	add	(%rdi), %r10
	add	%rsi, %r9
	dec	%rdx
	jnz	sweep_next
	mov	%r10, %rax
	ret
	missed	sweep
	place	sweep_over
	ud2
stlb_sweep_end:

	/* stlb_hammer(u64 *page, u64 n): writes to the page n times. */
	function stlb_hammer
	mov	%rdi, %rdx
	xor	%r9d, %r9d
	place	hammer_next CHARGE
	decq	BUDGET(%rip)
	js	hammer_over
	inc	%r9
	mov	%rdx, %rdi
	look_up	hammer
	mov	%r9, (%rdi)
	cmp	%rsi, %r9
	jb	hammer_next
	ret
	missed	hammer
	place	hammer_over
	ud2
stlb_hammer_end:

	/* u64 stlb_no_miss(void): through the answer to a miss that there was not. */
	function stlb_no_miss
	mov	MISS_RESULT(%rip), %rdi
	mov	(%rdi), %rax
	ret
stlb_no_miss_end:
	.globl	stlb_code_end
stlb_code_end:

	.section .rodata.stlb_functions, "a"
	.globl	stlb_functions_end
stlb_functions_end:
	.section .rodata.stlb_labels, "a"
	.globl	stlb_labels_end
stlb_labels_end:
