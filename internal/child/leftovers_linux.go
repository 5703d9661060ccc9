package child

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// leftovers finds the files that a held program and its descendants would leave when they are killed: files of shared memory in
// /dev/shm, and the files of Unix sockets. It removes only files that are certainly theirs:
//
//	file                                                     removed
//	a file that was there before the program                 no
//	a file in a folder below /dev/shm                        no
//	a file of another user, or one that is no plain file     no
//	a file that they have only read                          no: a model may lie in /dev/shm
//	a file that a process outside had when it was found      no
//	a file that any process has at the end                   no
//	a file that they had open or mapped for writing          yes, if it is still the same file
//	the file of a socket that they had bound                 yes, if it is still the same file, and nothing is bound to it
//
// A file is found while it is open or mapped, so one that is made and closed at once, or made in the last moment before a kill,
// stays. One goroutine at a time uses it.
type leftovers struct {
	shm string // the folder, without symbolic links; empty if there is none

	// foreign are files of the folder that were there before, or that another program has made, and strangers are inodes of such
	// sockets. The counts are the numbers of searches of the processes for a file or a socket. All are of files and sockets that
	// are there now.
	foreign       map[fileID]bool
	strangers     map[string]bool
	looked        map[fileID]int
	lookedSockets map[string]int

	files map[string]fileID // to remove, by path
	bound map[string]fileID // files of sockets to remove, by path
}

// The files of a system may be many, and its processes have large tables of memory, so those are read only while there is
// something new. A file that no descendant has after some looks belongs to another program.

// fileID distinguishes a file from a later one of the same name.
type fileID struct{ device, inode uint64 }

const (
	// lookEvery is the interval at which new files are looked for. Without any, that is one listing and one page of /proc.
	lookEvery = 250 * time.Millisecond
	// maxLooks bounds how often the processes are searched for one file, which another program may have made.
	maxLooks = 20
	// maxLeftovers bounds the files that are stored. An engine has some ten.
	maxLeftovers = 4096
)

// newLeftovers remembers the files and sockets that are there before the program starts.
func newLeftovers() *leftovers {
	l := &leftovers{
		foreign: map[fileID]bool{}, strangers: map[string]bool{}, looked: map[fileID]int{}, lookedSockets: map[string]int{},
		files: map[string]fileID{}, bound: map[string]fileID{},
	}
	folder, err := filepath.EvalSymlinks("/dev/shm")
	files, listed := plainFiles(folder)
	if err == nil && listed {
		l.shm = folder
	}
	for _, id := range files {
		l.foreign[id] = true
	}
	sockets, _ := boundSockets()
	for inode := range sockets {
		l.strangers[inode] = true
	}
	return l
}

// A listing that fails must not look like an empty one: all files would count as new at the next.

// plainFiles returns the files of a folder that belong to this user, by path. ok is false if it cannot be read.
func plainFiles(folder string) (all map[string]fileID, ok bool) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, false
	}
	all = map[string]fileID{}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if id, mode, err := identifyFile(path); err == nil && mode.IsRegular() {
			all[path] = id
		}
	}
	return all, true
}

// identifyFile returns the identity and the type of the file at a path. Symbolic links are not followed: one in /dev/shm,
// which every user may write to, could lead anywhere. It is an error if the file is not there or belongs to another user.
func identifyFile(path string) (fileID, fs.FileMode, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return fileID{}, 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Getuid() {
		return fileID{}, 0, fs.ErrPermission
	}
	return fileID{stat.Dev, stat.Ino}, info.Mode(), nil
}

// look finds the files and sockets that the descendants of this process have made since the last look.
//
//	new file or socket                          effect
//	a file that a descendant writes, only       it is removed at the end
//	a file that another process has too         it is left
//	a file that no descendant has               it is looked for again, at most 20 times
//	a socket that a descendant has bound        its file is removed at the end
//	a socket that no descendant has             it is looked for again, at most 20 times
func (l *leftovers) look() {
	files, sockets := l.newFiles(), l.newSockets()
	if len(files) == 0 && len(sockets) == 0 {
		return
	}

	for _, pid := range descendants(os.Getpid()) {
		used, err := usedBy(pid, l.shm)
		if err != nil {
			continue // it has ended
		}
		for path, id := range files {
			if used.writes[path] {
				l.files[path] = id
			}
		}
		for inode, path := range sockets {
			if id, _, err := identifyFile(path); used.sockets[inode] && err == nil {
				l.bound[path] = id
				l.strangers[inode] = true // it need not be looked for again
			}
		}
	}
	l.leaveOthers(files)
}

// newFiles returns the files of the folder that are not decided, and forgets the ones that are gone.
func (l *leftovers) newFiles() map[string]fileID {
	all, ok := plainFiles(l.shm)
	if !ok || l.shm == "" {
		return nil
	}
	// An inode may be used again for another file, so files that are gone are forgotten.
	there := map[fileID]bool{}
	for _, id := range all {
		there[id] = true
	}
	maps.DeleteFunc(l.foreign, func(id fileID, _ bool) bool { return !there[id] })
	maps.DeleteFunc(l.looked, func(id fileID, _ int) bool { return !there[id] })
	maps.DeleteFunc(l.files, func(_ string, id fileID) bool { return !there[id] })

	maps.DeleteFunc(all, func(path string, id fileID) bool {
		isDecided := l.foreign[id] || l.files[path] == id || len(l.files) >= maxLeftovers
		if isDecided {
			return true
		}
		l.looked[id]++
		l.foreign[id] = l.looked[id] > maxLooks
		return l.foreign[id]
	})
	return all
}

// newSockets returns the paths of bound sockets that are not decided, by inode, and forgets the ones that are gone.
func (l *leftovers) newSockets() map[string]string {
	all, ok := boundSockets()
	if !ok {
		return nil
	}
	maps.DeleteFunc(l.strangers, func(inode string, _ bool) bool { return all[inode] == "" })
	maps.DeleteFunc(l.lookedSockets, func(inode string, _ int) bool { return all[inode] == "" })
	if len(l.bound) >= maxLeftovers/2 {
		maps.DeleteFunc(l.bound, func(path string, id fileID) bool {
			now, _, err := identifyFile(path)
			return err != nil || now != id
		})
	}

	maps.DeleteFunc(all, func(inode, _ string) bool {
		if l.strangers[inode] || len(l.bound) >= maxLeftovers {
			return true
		}
		l.lookedSockets[inode]++
		l.strangers[inode] = l.lookedSockets[inode] > maxLooks
		return l.strangers[inode]
	})
	return all
}

// leaveOthers takes back each of the files that a process other than the descendants has: it may have made them.
func (l *leftovers) leaveOthers(files map[string]fileID) {
	taken := false
	for path, id := range files {
		taken = taken || l.files[path] == id
	}
	if !taken {
		return
	}

	// Descendants are listed after the search, because one that has just been forked has the files of its parent.
	users, complete := usersOf(l.shm)
	own := map[int]bool{}
	for _, pid := range descendants(os.Getpid()) {
		own[pid] = true
	}
	for path, id := range files {
		if l.files[path] != id {
			continue
		}
		for _, pid := range users[path] {
			if !own[pid] {
				delete(l.files, path)
				_, err := readStat(pid)
				l.foreign[id] = err == nil // whose one that has ended was is not known: the next look decides
			}
		}
		if !complete && isShared(path) {
			delete(l.files, path)
			l.foreign[id] = true
		}
	}
}

// isShared reports whether other users may open the file.
func isShared(path string) bool {
	const others = 0o077
	_, mode, err := identifyFile(path)
	return err != nil || mode.Perm()&others != 0
}

// remove removes the files that were found. All descendants must have ended.
//
//	found file                                  effect
//	a file that no process has any more         removed
//	a file that any process has                 left
//	a file that only its user may open, while   removed: no other user can have it
//	    some processes cannot be read
//	the file of a socket, nothing bound there   removed
//	another file under the name                 left
func (l *leftovers) remove() {
	// Another engine may use a file that this one has made: its processes decide.
	if len(l.files) > 0 {
		users, complete := usersOf(l.shm)
		for path, id := range l.files {
			if len(users[path]) == 0 && (complete || !isShared(path)) {
				removeSame(path, id, 0)
			}
		}
	}

	inUse := map[string]bool{}
	sockets, ok := boundSockets()
	if !ok {
		return
	}
	for _, path := range sockets {
		inUse[path] = true
	}
	// The file of a socket has another inode than the socket, and any process may bind the path again.
	for path, id := range l.bound {
		if !inUse[path] {
			removeSame(path, id, fs.ModeSocket)
		}
	}
}

// removeSame removes a file of the type, unless it is another one meanwhile. Between the question and the removal another program
// of this user could replace it; names of shared memory are drawn at random, so none does.
func removeSame(path string, id fileID, kind fs.FileMode) {
	now, mode, err := identifyFile(path)
	if err == nil && now == id && mode.Type() == kind {
		_ = os.Remove(path)
	}
}
