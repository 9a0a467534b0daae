/*
 * A boot loader with firmware of its own: started by QEMU as a Multiboot-1 kernel, it pretends to be UEFI and starts the hypervisor
 * by Multiboot 2. Its GetTime does what firmware must not do: "faulty=N" on the test kernel's command line says what.
 */
	.code32
	.section .header, "a"
	.balign	4
	.long	0x1badb002, 0x3, -(0x1badb002 + 0x3)

	.text
	.globl	_start
_start:
	mov	$stack_top, %esp
	push	%ebx
	call	load
	/* The hypervisor's entry point is in eax, what it is told in edx. */
	mov	%edx, %ebx
	mov	%eax, %ecx
	mov	$0x36d76289, %eax
	jmp	*%ecx

	.bss
	.balign	16
	.skip	4096
stack_top:

	/* The run-time services: at ring 0 in 64-bit mode, at these addresses. */
	.code64
	.section .firmware, "ax"
	.balign	4096
	.globl	firmware_code
firmware_code:
	.globl	faults
good:	xor	%eax, %eax
	ret
	/* It comes back, but with alignment checks and interrupts on, backwards, traced, and the registers lost that a call preserves. */
bad_flags:
	xor	%ebx, %ebx
	xor	%r12d, %r12d
	xor	%eax, %eax
	pop	%rcx
	pushq	$0x40702
	popfq
	jmp	*%rcx
	/* An address where nothing is. */
1:	mov	$0xdead000, %eax
	mov	%eax, (%rax)
	/* No instruction. */
2:	ud2
	/* An address that is none. */
3:	movabs	$0x800000000000, %rax
	mov	(%rax), %rax
	/* A division by zero, with nothing as a call finds it. */
4:	xor	%ebx, %ebx
	xor	%ebp, %ebp
	xor	%r12d, %r12d
	xor	%r13d, %r13d
	xor	%r14d, %r14d
	xor	%r15d, %r15d
	std
	xor	%ecx, %ecx
	div	%ecx
	/* Execution of data. */
5:	mov	$firmware_data, %eax
	jmp	*%rax
	/* A stack that is none: the exception finds no place there, and becomes a double fault. */
6:	mov	$0xdead000, %esp
	push	%rax
	/* A breakpoint. */
7:	int3
	/* Interrupts on, for long enough that some come. */
8:	sti
	mov	$20000000, %ecx
12:	dec	%ecx
	jnz	12b
	ud2
	/* The hypervisor's memory, which holds no code there. */
9:	movabs	$0xffff830000400000, %rax
	jmp	*%rax
	/* A segment register that cannot be. */
10:	mov	$0x23, %eax
	mov	%eax, %ss
	/* No end. */
11:	pause
	jmp	11b

	.section .rodata
	.balign	4
faults:	.long	good, 1b, 2b, 3b, 4b, 5b, 6b, 7b, 8b, 9b, 10b, bad_flags, 11b

	.section .firmware_data, "aw"
	.balign	4096
	.globl	firmware_data
firmware_data:

	.section .note.GNU-stack, "", @progbits
