use super::*;

/// A disk of 64 KiB, each byte the number of its sector.
fn export(name: &str) -> (Export, std::path::PathBuf) {
    let path = std::env::temp_dir().join(format!("tandem-nbd-{}-{name}", std::process::id()));
    let sectors: Vec<u8> = (0..128).flat_map(|n| [n; 512]).collect();
    std::fs::write(&path, sectors).unwrap();
    (Export::open(&path).unwrap(), path)
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    [&OPTION[..], &option.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

fn request(kind: u16, handle: u64, at: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let (flags, kind) = (0_u16.to_be_bytes(), kind.to_be_bytes());
    [&REQUEST.to_be_bytes()[..], &flags, &kind, &handle.to_be_bytes(), &at.to_be_bytes(), &len.to_be_bytes(), data]
        .concat()
}

fn reply(error: u32, handle: u64, data: &[u8]) -> Vec<u8> {
    [&REPLY.to_be_bytes()[..], &error.to_be_bytes(), &handle.to_be_bytes(), data].concat()
}

/// A client that has the disk.
fn connected(export: &Export) -> Client {
    let (mut client, hello) = Client::new();
    assert_eq!(hello, b"NBDMAGICIHAVEOPT\0\x03");
    assert!(client.take(&[0, 0, 0, 3], export).unwrap().is_empty() && !client.has_disk());
    let told = client.take(&option(EXPORT_NAME, b"any"), export).unwrap();
    assert_eq!(told, [&65536_u64.to_be_bytes()[..], &[0, 5]].concat());
    assert!(client.has_disk());
    client
}

#[test]
fn it_is_read_written_and_flushed() {
    let (export, path) = export("all");
    let mut client = connected(&export);
    let answer = client.take(&request(READ, 7, 1024, 512, &[]), &export).unwrap();
    assert_eq!(answer, reply(0, 7, &[2; 512]));
    let all = [request(WRITE, 8, 512, 512, &[9; 512]), request(FLUSH, 9, 0, 0, &[]), request(READ, 1, 0, 1024, &[])];
    let answer = client.take(&all.concat(), &export).unwrap();
    let wanted = [reply(0, 8, &[]), reply(0, 9, &[]), reply(0, 1, &[[0; 512], [9; 512]].concat())];
    assert_eq!(answer, wanted.concat());
    client.take(&request(DISCONNECT, 2, 0, 0, &[]), &export).unwrap();
    assert!(client.is_over() && !client.has_disk());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_comes_in_pieces_is_done_when_all_of_it_is_there() {
    let (export, path) = export("pieces");
    let mut client = connected(&export);
    let all = request(WRITE, 8, 512, 512, &[9; 512]);
    for byte in &all[..all.len() - 1] {
        assert!(client.take(&[*byte], &export).unwrap().is_empty());
    }
    assert_eq!(export.read(512, 1).unwrap(), [1]);
    assert_eq!(client.take(&all[all.len() - 1..], &export).unwrap(), reply(0, 8, &[]));
    assert_eq!(export.read(512, 1).unwrap(), [9]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_is_not_there_is_refused() {
    let (export, path) = export("refused");
    let mut client = connected(&export);
    for (at, len) in [(65536, 1), (65024, 1024), (u64::MAX, 1)] {
        assert_eq!(client.take(&request(READ, 3, at, len, &[]), &export).unwrap(), reply(EINVAL, 3, &[]));
    }
    assert_eq!(client.take(&request(4, 3, 0, 512, &[]), &export).unwrap(), reply(EINVAL, 3, &[]));
    assert!(client.take(&[0; 28], &export).is_err());
    assert!(connected(&export).take(&request(READ, 3, 0, u32::MAX, &[]), &export).is_err());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn options_that_it_does_not_know_are_refused_and_others_may_follow() {
    let (export, path) = export("options");
    let (mut client, _) = Client::new();
    client.take(&[0, 0, 0, 1], &export).unwrap();
    let refused = client.take(&option(7, b"go"), &export).unwrap();
    assert_eq!(refused, [&OPTION_REPLY.to_be_bytes()[..], &[0, 0, 0, 7, 0x80, 0, 0, 1, 0, 0, 0, 0]].concat());
    // Who has not asked for less gets the zeroes.
    assert_eq!(client.take(&option(EXPORT_NAME, b""), &export).unwrap().len(), 8 + 2 + UNUSED);
    let (mut client, _) = Client::new();
    client.take(&[0, 0, 0, 3], &export).unwrap();
    client.take(&option(ABORT, b""), &export).unwrap();
    assert!(client.is_over());
    std::fs::remove_file(path).unwrap();
}
