package nixl

import (
	"errors"

	"github.com/ebitengine/purego"
)

// Op is the direction of a transfer.
type Op int32

// The directions. Read copies from the peer to local memory, and Write from local memory to the peer.
const (
	Read Op = iota
	Write
)

// Prepared is a list of descriptors from which requests choose by index.
type Prepared struct {
	a      *Agent
	handle uintptr
}

// Prepare checks a list once for many requests. The local side of transfers has an empty name, and the other side the name of the peer.
func (a *Agent) Prepare(peer string, list []Descriptor, backends ...*Backend) (*Prepared, error) {
	options, destroy, err := a.options(backends)
	if err != nil {
		return nil, err
	}
	defer destroy()

	var handle uintptr
	if err := check("create_xfer_dlist", a.f.createDescriptors(dram, &handle)); err != nil {
		return nil, err
	}
	defer a.f.destroyDescriptors(handle)
	for _, d := range list {
		if err := check("xfer_dlist_add_desc", a.f.addDescriptor(handle, d.Addr, d.Len, 0)); err != nil {
			return nil, err
		}
	}

	p := &Prepared{a: a}
	if err := check("prep_xfer_dlist", a.f.prepare(a.handle, peer, handle, &p.handle, options)); err != nil {
		return nil, err
	}
	return p, nil
}

// Close releases the list. Requests that were made of it must be closed before.
func (p *Prepared) Close() error {
	return check("release_xfer_dlist_handle", p.a.f.releasePrepared(p.a.handle, p.handle))
}

// Request is a transfer, which can be posted more than once.
type Request struct {
	a      *Agent
	handle uintptr
}

// MakeRequest makes a request of descriptors of two prepared lists: the i-th index of one side belongs to the i-th of the other.
func (a *Agent) MakeRequest(op Op, local *Prepared, locals []int32, remote *Prepared, remotes []int32) (*Request, error) {
	if len(locals) == 0 || len(locals) != len(remotes) {
		return nil, errors.New("nixl make_xfer_req: both sides need the same number of indices, at least one")
	}
	options, destroy, err := a.options(nil)
	if err != nil {
		return nil, err
	}
	defer destroy()

	r := &Request{a: a}
	code := a.f.makeRequest(a.handle, int32(op), local.handle, locals, uintptr(len(locals)), remote.handle, remotes, uintptr(len(remotes)),
		&r.handle, options)
	if err := check("make_xfer_req", code); err != nil {
		return nil, err
	}
	return r, nil
}

// Post starts the transfer, and reports whether it is done already. On one host UCX copies in this call, which then takes as long as
// the copy. A request must not be posted again before it is done.
func (r *Request) Post() (done bool, err error) {
	code, _, _ := purego.SyscallN(r.a.f.post, r.a.handle, r.handle, 0)
	return finished("post_xfer_req", code)
}

// Poll reports whether the transfer is done, and makes progress with it.
func (r *Request) Poll() (done bool, err error) {
	code, _, _ := purego.SyscallN(r.a.f.status, r.a.handle, r.handle)
	return finished("get_xfer_status", code)
}

// finished reads a status of a transfer from a register, of which C sets the lower half.
func finished(call string, register uintptr) (done bool, err error) {
	code := int32(uint32(register))
	if Status(code) == inProgress {
		return false, nil
	}
	return true, check(call, code)
}

// Close releases the request. If it is not done, NIXL may still write to the local memory after that.
func (r *Request) Close() error {
	err := check("release_xfer_req", r.a.f.releaseRequest(r.a.handle, r.handle))
	if err != nil {
		return err // destroying it then would free memory in use
	}
	return check("destroy_xfer_req", r.a.f.destroyRequest(r.handle))
}
