//! Connections to the peer's disk.

use super::super::nbd::{Client, Export, PORT};
use super::BUFFER;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};

/// One that serves, one that comes in its place, and some that nobody uses any more, whose other end has died.
const CONNECTIONS: usize = 8;

/// The disk, and who asks for it.
pub struct Disk {
    export: Export,
    connections: Vec<Connection>,
}

struct Connection {
    socket: SocketHandle,
    client: Option<Client>,
    /// What there is no room for yet.
    out: Vec<u8>,
}

impl Disk {
    pub fn new(export: Export, sockets: &mut SocketSet<'static>) -> Self {
        let mut socket = || {
            let buffer = || SocketBuffer::new(vec![0; BUFFER]);
            sockets.add(Socket::new(buffer(), buffer()))
        };
        let connections =
            (0..CONNECTIONS).map(|_| Connection { socket: socket(), client: None, out: Vec::new() }).collect();
        Self { export, connections }
    }

    /// Does what is asked for. Whoever gets the disk has it alone: what came by an earlier connection, and was not
    /// done, is not done any more. Else a write of a driver domain that is gone could come after one of its
    /// successor's.
    pub fn serve(&mut self, sockets: &mut SocketSet<'static>) {
        let mut newest = None;
        for (n, connection) in self.connections.iter_mut().enumerate() {
            if connection.serve(sockets.get_mut(connection.socket), &self.export) {
                newest = Some(n);
            }
        }
        let Some(newest) = newest else { return };
        for (n, connection) in self.connections.iter_mut().enumerate() {
            if n != newest && connection.client.as_ref().is_some_and(Client::has_disk) {
                sockets.get_mut::<Socket<'_>>(connection.socket).abort();
                connection.forget();
            }
        }
    }
}

impl Connection {
    fn forget(&mut self) {
        self.client = None;
        self.out.clear();
    }

    /// `true`: it has just got the disk.
    fn serve(&mut self, socket: &mut Socket, export: &Export) -> bool {
        if !socket.is_open() {
            self.forget();
            let _ = socket.listen(PORT);
            return false;
        }
        if self.client.is_none() && socket.may_send() {
            let (client, hello) = Client::new();
            self.client = Some(client);
            self.out = hello;
        }
        let Some(client) = &mut self.client else { return false };
        let had_disk = client.has_disk();
        while socket.can_recv() {
            let taken = socket.recv(|data| (data.len(), client.take(data, export)));
            let Ok(Ok(answer)) = taken else {
                socket.abort();
                return false;
            };
            self.out.extend(answer);
        }
        let sent = socket.send_slice(&self.out).unwrap_or(0);
        self.out.drain(..sent);
        if self.out.is_empty() && (client.is_over() || !socket.may_recv()) {
            socket.close();
        }
        client.has_disk() && !had_disk
    }
}
