//! Error numbers as hypercalls return them, negated (public/errno.h); the same values as Linux's.

/// A Xen error number. A hypercall returns `-(errno as i64)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are the documentation: errno(3)")]
pub enum Errno {
    EPERM = 1,
    ENOENT = 2,
    ESRCH = 3,
    EIO = 5,
    ENXIO = 6,
    E2BIG = 7,
    ENOEXEC = 8,
    EBADF = 9,
    EAGAIN = 11,
    ENOMEM = 12,
    EACCES = 13,
    EFAULT = 14,
    EBUSY = 16,
    EEXIST = 17,
    EXDEV = 18,
    ENODEV = 19,
    EINVAL = 22,
    ENOSPC = 28,
    EROFS = 30,
    EMLINK = 31,
    EDOM = 33,
    ERANGE = 34,
    EDEADLK = 35,
    ENOSYS = 38,
    ENODATA = 61,
    ETIME = 62,
    EBADMSG = 74,
    EOVERFLOW = 75,
    EILSEQ = 84,
    /// Internal to the hypervisor: the operation was preempted and is to be re-executed. Never reaches a guest.
    ERESTART = 85,
    ENOTSOCK = 88,
    EMSGSIZE = 90,
    EOPNOTSUPP = 95,
    EADDRINUSE = 98,
    EADDRNOTAVAIL = 99,
    ENOBUFS = 105,
    EISCONN = 106,
    ENOTCONN = 107,
    ETIMEDOUT = 110,
    ECONNREFUSED = 111,
}

impl Errno {
    /// The value that a hypercall leaves in `rax`: the negated number, sign-extended.
    pub const fn to_ret(self) -> i64 {
        -(self as i32 as i64)
    }
}
