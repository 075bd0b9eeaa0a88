//! The file system: the kernel's questions, and the agent's answers.

use std::{
    collections::HashMap,
    error::Error,
    ffi::OsStr,
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use weir_api::{Activity, Class, Client, ClientError, SetPolicies};

use crate::{
    content, errno,
    names::{self, Numbers},
    say,
};

/// The time for which the kernel may keep an answer: none, as classes come and go.
const KEPT: Duration = Duration::ZERO;
/// The number of a file that the kernel has not looked up, in the list of the directory.
const NOT_LOOKED_UP: u64 = 0xffff_ffff;

/// The classes of an agent as files of one directory.
pub(crate) struct Files {
    client: Client,
    /// The user and group of all files.
    owner: (u32, u32),
    state: Mutex<State>,
}

struct State {
    numbers: Numbers,
    next_handle: u64,
    open: HashMap<u64, Open>,
}

/// The content of an open file or directory when it was read from the start.
enum Open {
    File(Vec<u8>),
    Directory(Vec<String>),
}

impl Files {
    /// The classes of the agent behind `client`, as files of the user who owns this process.
    ///
    /// # Errors
    /// The process is not in `/proc`.
    pub(crate) fn new(client: Client) -> io::Result<Files> {
        let own = Path::new("/proc/self").metadata()?;
        let state = State { numbers: Numbers::new(), next_handle: 1, open: HashMap::new() };
        Ok(Files { client, owner: (own.uid(), own.gid()), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The class's name of a file.
    fn name(&self, file: INodeNo) -> Result<String, Errno> {
        self.state().numbers.class(file.0).map(str::to_owned).ok_or(Errno::ENOENT)
    }

    /// A class that is here.
    fn class(&self, name: &str) -> Result<Class, Errno> {
        let class = self.client.class(name).map_err(|e| self.refuse("read", name, &e))?;
        if class.activity == Activity::Absent { Err(Errno::ENOENT) } else { Ok(class) }
    }

    /// Says why, and returns the number. That a class is not here needs no words.
    fn refuse(&self, verb: &str, name: &str, error: &ClientError) -> Errno {
        let number = errno::of(error);
        if number != Errno::ENOENT {
            say(&told(verb, name, error));
        }
        number
    }

    fn open(&self, open: Open) -> FileHandle {
        let mut state = self.state();
        let handle = state.next_handle;
        state.next_handle += 1;
        state.open.insert(handle, open);
        FileHandle(handle)
    }

    fn attributes(&self, file: INodeNo) -> FileAttr {
        let is_root = file.0 == Numbers::ROOT;
        let now = SystemTime::now();
        FileAttr {
            ino: file,
            // As in /proc: the text is made when it is read.
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: if is_root { 0o500 } else { 0o600 },
            nlink: if is_root { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn look_up(&self, parent: INodeNo, file: &OsStr) -> Result<FileAttr, Errno> {
        if parent.0 != Numbers::ROOT {
            return Err(Errno::ENOTDIR);
        }
        let name = file.to_str().and_then(names::decode).ok_or(Errno::ENOENT)?;
        self.class(&name)?;
        let number = self.state().numbers.look_up(&name);
        Ok(self.attributes(INodeNo(number)))
    }

    /// The part of the file's text that was asked for. A read from the start asks the agent.
    fn text(&self, file: INodeNo, handle: FileHandle, from: u64, size: u32) -> Result<Vec<u8>, Errno> {
        if from == 0 {
            let text = content::of(&self.class(&self.name(file)?)?).into_bytes();
            self.state().open.insert(handle.0, Open::File(text));
        }
        let state = self.state();
        let Some(Open::File(text)) = state.open.get(&handle.0) else { return Err(Errno::EBADF) };
        let begin = usize::try_from(from).unwrap_or(usize::MAX).min(text.len());
        let end = begin.saturating_add(size as usize).min(text.len());
        Ok(text[begin..end].to_vec())
    }

    /// Changes the policy of the file's class, as `weir set` does.
    fn change(&self, file: INodeNo, written: &[u8]) -> Result<(), Errno> {
        let name = self.name(file)?;
        let change = content::change(&name, written).map_err(|error| {
            say(&told("set", &name, &error));
            Errno::EINVAL
        })?;
        // The agent would change a policy that is kept for a class that has gone.
        self.class(&name)?;
        let changes = SetPolicies { changes: vec![change], allow_absent: false };
        self.client.set(&changes).map_err(|e| self.refuse("set", &name, &e))?;
        Ok(())
    }
}

/// The words of an error. Many errors name what was tried themselves.
fn told(verb: &str, name: &str, error: &dyn Error) -> String {
    let (what, why) = (format!("cannot {verb} "), error.to_string());
    if why.starts_with(&what) { why } else { format!("{what}{name}: {why}") }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
            Ok(attributes) => reply.entry(&KEPT, &attributes, Generation(0)),
            Err(number) => reply.error(number),
        }
    }

    fn forget(&self, _: &Request, file: INodeNo, lookups: u64) {
        self.state().numbers.forget(file.0, lookups);
    }

    fn getattr(&self, _: &Request, file: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if file.0 == Numbers::ROOT || self.state().numbers.class(file.0).is_some() {
            reply.attr(&KEPT, &self.attributes(file));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    /// Takes what `>` and `touch` do, which changes nothing. Owners and modes stay.
    fn setattr(
        &self,
        _: &Request,
        file: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() || size.is_some_and(|size| size > 0) {
            reply.error(Errno::EPERM);
        } else {
            reply.attr(&KEPT, &self.attributes(file));
        }
    }

    /// A new file would be a class that is not here.
    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::ENOENT);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Past the page cache: a read asks the agent, and ends where the text does.
        reply.opened(self.open(Open::File(Vec::new())), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        file: INodeNo,
        handle: FileHandle,
        from: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.text(file, handle, from, size) {
            Ok(text) => reply.data(&text),
            Err(number) => reply.error(number),
        }
    }

    /// One write is one change, all of it or nothing.
    fn write(
        &self,
        _: &Request,
        file: INodeNo,
        _: FileHandle,
        _: u64,
        written: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.change(file, written) {
            Ok(()) => reply.written(u32::try_from(written.len()).unwrap_or(u32::MAX)),
            Err(number) => reply.error(number),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.state().open.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.client.classes() {
            Ok(classes) => {
                reply.opened(self.open(Open::Directory(names::list(&classes))), FopenFlags::empty());
            }
            Err(error) => reply.error(self.refuse("list", "the classes", &error)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, from: u64, mut reply: ReplyDirectory) {
        let state = self.state();
        let Some(Open::Directory(files)) = state.open.get(&handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let own = [".", ".."].map(|name| (Numbers::ROOT, FileType::Directory, name));
        let files = files.iter().map(|file| (NOT_LOOKED_UP, FileType::RegularFile, file.as_str()));
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        for (next, (number, kind, name)) in (1..).zip(own.into_iter().chain(files)).skip(from) {
            if reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.state().open.remove(&handle.0);
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_what_was_tried_once() {
        let refused = |why: &str| told("set", "web", &io::Error::other(why));
        let full = "cannot set web: minimum 5mbit is not free";
        assert_eq!(refused(full), full);
        assert_eq!(refused("the agent is stopping"), "cannot set web: the agent is stopping");
    }
}
