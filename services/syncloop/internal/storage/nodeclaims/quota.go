package nodeclaims

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/types"
)

// quotas limit the content of directories by project IDs; projectquota.FileSystem implements it.
type quotas interface {
	Enforced(dir string) error
	Project(dir string) (uint32, error)
	Assign(dir string, id uint32) error
	Limit(dir string, id uint32, bytes int64) error
	Pick(dir, seed string, taken map[uint32]bool) (uint32, error)
}

// Why the size of a claim is not enforced, although its file system has quotas.
var (
	errNotChecked = errors.New("it is not known yet whether it can be")
	errNoProject  = errors.New("its directory was not made with a project ID: copy the data to a new claim")
)

func (f folder) enforced() error { return f.quotas.Enforced(f.dir) }

func (f folder) pick(uid types.UID, taken map[uint32]bool) (uint32, error) {
	return f.quotas.Pick(f.dir, string(uid), taken)
}

func (f folder) limit(project uint32, bytes int64) error {
	return f.quotas.Limit(f.dir, project, bytes)
}

func (f folder) project(k key) (uint32, error) { return f.quotas.Project(f.path(k)) }

// reserve returns a project ID for a new claim; 0 if its size cannot be enforced: the file system has no quotas, or the
// directory is there already. The driver enforces the size of a volume of a storage class.
func (c *Claims) reserve(k key, r *record) (uint32, error) {
	if r.hasClass() || c.disk.enforced() != nil {
		return 0, nil
	}
	if _, err := os.Lstat(c.disk.path(k)); err == nil {
		return 0, nil
	}
	taken := map[uint32]bool{}
	for _, r := range c.records {
		taken[r.Project] = true
	}
	return c.disk.pick(r.uid(), taken)
}

// makeLimited makes the directory of a claim, which is limited before a pod can write to it.
func (c *Claims) makeLimited(k key, r *record) error {
	project := r.Project
	if c.disk.enforced() != nil {
		project = 0 // the file system had quotas when the claim was new
	}
	if project != 0 {
		if err := c.disk.limit(project, r.size()); err != nil {
			return err
		}
	}
	return c.disk.make(k, project)
}

// enforce limits a directory to the size of its claim, or notes for users why that is not possible. A volume of a
// storage class grows to this size.
func (c *Claims) enforce(k key, r *record) {
	if r.hasClass() {
		c.cfg.Volumes.Want(r.Claim)
		return
	}
	err := c.tryEnforce(k, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.unenforced = err
}

func (c *Claims) tryEnforce(k key, r *record) error {
	if err := c.disk.enforced(); err != nil {
		return err
	}
	if r.Project == 0 {
		return errNoProject
	}
	project, err := c.disk.project(k)
	if err != nil {
		return err
	}
	if project != r.Project {
		return fmt.Errorf("its directory does not have the project ID %d", r.Project)
	}
	return c.disk.limit(project, r.size())
}

// release removes the limit of a claim whose directory was moved away. Its project ID is picked again when nothing has
// it any more.
func (c *Claims) release(r *record) error {
	if r.Project == 0 || c.disk.enforced() != nil {
		return nil
	}
	return c.disk.limit(r.Project, 0)
}
