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

	/* u64 twin_full(u64 depth, u64 kind): so many calls deep, the last of a function of its own, or, if kind is more than 1, of import 1. */
	function twin_full
	decq	BUDGET(%rip)
	js	2f
	cmp	$1, %rdi
	jbe	3f
	dec	%rdi
	call	twin_full
	ret
2:
	.pushsection .rodata.twin_labels, "a"
	.long	2b - code, 0
	.popsection
	ud2
3:
	.pushsection .rodata.twin_labels, "a"
	.long	3b - code, 0
	.popsection
	cmp	$1, %rsi
	jbe	4f
	call	*IMPORTS + 8(%rip)
	ret
4:
	.pushsection .rodata.twin_labels, "a"
	.long	4b - code, 0
	.popsection
	call	twin_percpu
	ret
twin_full_end:

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

	/* u64 twin_lock_upcall(u32 *lock): what import 0 returns, which is called with that taken by import 3. */
	function twin_lock_upcall
	push	%rbx
	push	%rbp
	mov	%rdi, %rbx
	call	*IMPORTS + 24(%rip)
	mov	%rbx, %rdi
	call	*IMPORTS(%rip)
	mov	%rax, %rbp
	mov	%rbx, %rdi
	call	*IMPORTS + 32(%rip)
	mov	%rbp, %rax
	pop	%rbp
	pop	%rbx
	ret
twin_lock_upcall_end:

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

	/*
	 * A network card's driver, as small as it can be: guests/cards. The places are those of its struct card; NAPI and QUEUE are the
	 * structures of Linux's that lie in it. Imports 1 to 8 are those of card_imports.
	 */
	.set	XMIT_ANSWER, 0
	.set	XMIT_CALL, 8
	.set	XMIT_BUG, 16
	.set	POLL_CALL, 24
	.set	POLL_BUG, 32
	.set	ARGUMENT, 40
	.set	NR_SENT, 48
	.set	NR_GONE, 56
	.set	NR_DONE, 64
	.set	WAKE, 72
	.set	RX_FILLED, 80
	.set	RX_WANTED, 88
	.set	RX_THERE, 96
	.set	RX_TAKEN, 104
	.set	WEIGHT, 112
	.set	NR_INTERRUPTS, 120
	.set	NR_POLLS, 128
	.set	SECOND, 136
	.set	INTERRUPT_BUG, 144
	.set	LATE_CALL, 152
	.set	INTERRUPT_FLIP, 160
	.set	TX, 256
	.set	RX, 768
	.set	NAPI, 1280
	.set	QUEUE, 2048

	/* A label of that name. */
	.macro	place name flags=0
	.pushsection .rodata.twin_labels, "a"
	.long	\name - code, \flags
	.popsection
\name:
	.endm
	/* The card, which is in rbx, as the twin sees it. */
	.macro	card to
	mov	%rbx, \to
	and	MASK(%rip), \to
	.endm

	/*
	 * int card_xmit(skb, card): calls import 0 with ARGUMENT if it is told to, and import 8 with SECOND after it if it is told 2; keeps the
	 * packet unless it is told to refuse it.
	 */
	function card_xmit
	push	%rbx
	push	%rbp
	mov	%rdi, %rbp
	mov	%rsi, %rbx
	card	%rax
	cmpq	$0, XMIT_CALL(%rax)
	je	card_xmit_take
	mov	ARGUMENT(%rax), %rdi
	call	*IMPORTS(%rip)
	card	%rdx
	cmpq	$2, XMIT_CALL(%rdx)
	jb	card_xmit_take
	mov	SECOND(%rdx), %rdi
	call	*IMPORTS + 64(%rip)
	place	card_xmit_take 2
	card	%rdx
	cmpq	$0, XMIT_BUG(%rdx)
	jne	card_xmit_bug
	mov	XMIT_ANSWER(%rdx), %rax
	test	%rax, %rax
	jne	card_xmit_out
	mov	NR_SENT(%rdx), %rcx
	lea	1(%rcx), %rsi
	mov	%rsi, NR_SENT(%rdx)
	and	$63, %ecx
	mov	%rbp, TX(%rdx, %rcx, 8)
	place	card_xmit_out 2
	pop	%rbp
	pop	%rbx
	ret
	place	card_xmit_bug 2
	ud2
card_xmit_end:

	/* int card_interrupt(number, card): schedules the poll, unless it is told to end when it has taken it. Bits of its answer are as it is told. */
	function card_interrupt
	push	%rbx
	push	%rbp
	mov	%rsi, %rbx
	card	%rax
	incq	NR_INTERRUPTS(%rax)
	lea	NAPI(%rbx), %rdi
	call	*IMPORTS + 8(%rip)
	test	%eax, %eax
	je	card_interrupt_out
	card	%rax
	cmpq	$0, INTERRUPT_BUG(%rax)
	jne	card_interrupt_bug
	lea	NAPI(%rbx), %rdi
	call	*IMPORTS + 16(%rip)
	place	card_interrupt_out 2
	card	%rdx
	mov	INTERRUPT_FLIP(%rdx), %eax
	xor	$1, %eax
	pop	%rbp
	pop	%rbx
	ret
	place	card_interrupt_bug 2
	ud2
card_interrupt_end:

	/*
	 * int card_poll(napi, weight): lets go of what the card has sent, hands over what it has received, and gives it new buffers. If it is told
	 * to, it calls import 0 with ARGUMENT when it has given the poll up, and ends.
	 */
	function card_poll
	push	%rbx
	push	%rbp
	lea	-NAPI(%rdi), %rbx
	xor	%ebp, %ebp
	card	%rax
	mov	%rsi, WEIGHT(%rax)
	incq	NR_POLLS(%rax)
	cmpq	$0, POLL_BUG(%rax)
	jne	card_poll_bug
	cmpq	$0, POLL_CALL(%rax)
	je	card_poll_sent
	mov	ARGUMENT(%rax), %rdi
	call	*IMPORTS(%rip)
	place	card_poll_sent CHARGE+2
	decq	BUDGET(%rip)
	js	card_poll_bug
	card	%rax
	mov	NR_DONE(%rax), %rdx
	cmp	NR_GONE(%rax), %rdx
	jae	card_poll_wake
	mov	%edx, %ecx
	and	$63, %ecx
	mov	TX(%rax, %rcx, 8), %rdi
	inc	%rdx
	mov	%rdx, NR_DONE(%rax)
	mov	$64, %esi
	call	*IMPORTS + 24(%rip)
	jmp	card_poll_sent
	place	card_poll_wake 2
	card	%rax
	cmpq	$0, WAKE(%rax)
	je	card_poll_receive
	movq	$0, WAKE(%rax)
	lea	QUEUE(%rbx), %rdi
	call	*IMPORTS + 32(%rip)
	place	card_poll_receive CHARGE+2
	decq	BUDGET(%rip)
	js	card_poll_bug
	card	%rax
	cmp	WEIGHT(%rax), %rbp
	jae	card_poll_out
	mov	RX_TAKEN(%rax), %rdx
	cmp	RX_THERE(%rax), %rdx
	jae	card_poll_fill
	mov	%edx, %ecx
	and	$63, %ecx
	mov	RX(%rax, %rcx, 8), %rsi
	inc	%rdx
	mov	%rdx, RX_TAKEN(%rax)
	inc	%rbp
	lea	NAPI(%rbx), %rdi
	call	*IMPORTS + 40(%rip)
	jmp	card_poll_receive
	place	card_poll_fill CHARGE+2
	decq	BUDGET(%rip)
	js	card_poll_bug
	card	%rax
	mov	RX_FILLED(%rax), %rdx
	cmp	RX_WANTED(%rax), %rdx
	jae	card_poll_complete
	lea	NAPI(%rbx), %rdi
	mov	$1600, %esi
	call	*IMPORTS + 56(%rip)
	test	%rax, %rax
	je	card_poll_complete
	card	%rdx
	mov	RX_FILLED(%rdx), %rsi
	mov	%esi, %ecx
	and	$63, %ecx
	mov	%rax, RX(%rdx, %rcx, 8)
	inc	%rsi
	mov	%rsi, RX_FILLED(%rdx)
	jmp	card_poll_fill
	place	card_poll_complete 2
	lea	NAPI(%rbx), %rdi
	mov	%ebp, %esi
	call	*IMPORTS + 48(%rip)
	card	%rax
	cmpq	$0, LATE_CALL(%rax)
	je	card_poll_out
	mov	ARGUMENT(%rax), %rdi
	call	*IMPORTS(%rip)
	jmp	card_poll_bug
	place	card_poll_out 2
	mov	%rbp, %rax
	pop	%rbp
	pop	%rbx
	ret
	place	card_poll_bug 2
	ud2
card_poll_end:

	/* int round_xmit(skb, card): keeps the packet, and schedules the poll of the napi_struct that ARGUMENT names. */
	function round_xmit
	mov	%rsi, %rax
	and	MASK(%rip), %rax
	mov	ARGUMENT(%rax), %rdi
	call	*IMPORTS + 16(%rip)
	xor	%eax, %eax
	ret
round_xmit_end:

	/* int round_poll(napi, weight): schedules the poll of the napi_struct that its own names in its first word, if it does. */
	function round_poll
	mov	%rdi, %rdx
	and	MASK(%rip), %rdx
	mov	(%rdx), %rdi
	test	%rdi, %rdi
	je	round_poll_out
	call	*IMPORTS + 16(%rip)
	place	round_poll_out 0
	xor	%eax, %eax
	ret
round_poll_end:

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
