package nodeclaims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
)

const (
	// contentMode is the mode of a claim's directory, as local-path-provisioner makes it: pods of every user may write to
	// it. The directories above it are the owner's alone.
	contentMode = 0o777
	// fileMode is the mode of a record.
	fileMode = 0o600

	recordExtension = ".json"
	removedPrefix   = ".removed-"
	unfinishedName  = ".new"
)

// disk are the steps on disk. Each is durable when it has returned.
type disk interface {
	// load returns the claims with a record, and removes what an interrupted step has left.
	load() (map[key]*record, error)
	// save writes the record of a claim.
	save(k key, r *record) error
	// make makes the directory of a claim with a project ID, unless there is one. 0 is no project ID.
	make(k key, project uint32) error
	// moveAway renames the directory of a claim, which may be missing, so that sweep removes it.
	moveAway(k key) error
	// forget removes the record of a claim, which may be missing.
	forget(k key, uid types.UID) error
	// sweep removes the directories that were moved away.
	sweep(ctx context.Context) error
	// path returns the directory of a claim.
	path(k key) string

	// enforced returns nil if limits are enforced, and otherwise why they are not.
	enforced() error
	// pick returns a project ID that nothing has, and that is none of taken.
	pick(uid types.UID, taken map[uint32]bool) (uint32, error)
	// limit limits what a project may have; 0 is no limit.
	limit(project uint32, bytes int64) error
	// project returns the project ID of the directory of a claim; 0 if it has none.
	project(k key) (uint32, error)
}

// folder is the disk of a real directory.
type folder struct {
	dir    string
	quotas quotas
	logger *slog.Logger
}

func (f folder) path(k key) string { return filepath.Join(f.dir, k.namespace, k.name) }

func (f folder) recordPath(k key, uid types.UID) string {
	return filepath.Join(f.dir, k.namespace, "."+string(uid)+recordExtension)
}

// load skips what is no directory of a namespace.
func (f folder) load() (map[key]*record, error) {
	if err := statedir.MakeDir(f.dir); err != nil {
		return nil, err
	}
	all := map[key]*record{}
	namespaces, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	for _, namespace := range namespaces {
		dir := filepath.Join(f.dir, namespace.Name())
		entries, err := os.ReadDir(dir)
		if errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			switch name := entry.Name(); {
			case !strings.HasPrefix(name, "."), strings.HasPrefix(name, removedPrefix):
			case strings.Contains(name, ".tmp-"):
				err = statedir.RemoveFile(path)
			case name == unfinishedName:
				err = os.Remove(path)
			case strings.HasSuffix(name, recordExtension):
				err = f.read(path, namespace.Name(), all)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// read reads a record. A damaged one is reported, and its directory stays as it is. One that cannot be read is an
// error, because its directory must not become that of another claim.
func (f folder) read(path, namespace string, all map[key]*record) error {
	r := &record{}
	data, err := statedir.Read(path)
	if statedir.IsUnreadable(err) {
		return err
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil && (r.Claim == nil || r.Claim.Namespace != namespace || f.recordPath(keyOf(r), r.uid()) != path) {
		err = errors.New("it is not the record of the claim in it")
	}
	if err == nil && all[keyOf(r)] != nil {
		err = errors.New("there are two records of the claim in it")
	}
	if err != nil {
		f.logger.Error("the record of a claim is damaged: its directory belongs to the next claim of that name that a pod uses",
			telemetry.KeyFile, path, telemetry.KeyError, err)
		return nil
	}
	all[keyOf(r)] = r
	return nil
}

func keyOf(r *record) key { return key{r.Claim.Namespace, r.Claim.Name} }

func (f folder) save(k key, r *record) error {
	if err := checkNames(k, r.uid()); err != nil {
		return err
	}
	if err := f.makeNamespace(k); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of a claim: %w", err)
	}
	return statedir.WriteFileAtomic(f.recordPath(k, r.uid()), data, fileMode)
}

// makeNamespace makes the directory of the claims of a namespace.
func (f folder) makeNamespace(k key) error {
	return statedir.MakeDir(filepath.Join(f.dir, k.namespace))
}

// checkNames checks that names are those of entries of a directory. configmux has validated the claim.
func checkNames(k key, uid types.UID) error {
	for _, name := range []string{k.namespace, k.name, string(uid)} {
		if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("the claim %s/%s with the UID %q has an invalid name", k.namespace, k.name, uid)
		}
	}
	return nil
}

// make makes the directory under another name first, so that a killed process leaves none with a wrong mode or project.
func (f folder) make(k key, project uint32) error {
	path := f.path(k)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	unfinished := filepath.Join(f.dir, k.namespace, unfinishedName)
	if err := os.Mkdir(unfinished, contentMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(unfinished, contentMode); err != nil { // regardless of the umask
		return err
	}
	if project != 0 {
		if err := f.quotas.Assign(unfinished, project); err != nil {
			return err
		}
	}
	return f.rename(unfinished, path)
}

// moveAway gives the directory a name that no other one had, because that of an earlier claim of the name may still be
// there.
func (f folder) moveAway(k key) error {
	err := f.rename(f.path(k), filepath.Join(f.dir, k.namespace, removedPrefix+uuid.NewString()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// rename durably renames an entry of a directory.
func (folder) rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f folder) forget(k key, uid types.UID) error { return statedir.RemoveFile(f.recordPath(k, uid)) }

func (f folder) sweep(ctx context.Context) error {
	removed, err := filepath.Glob(filepath.Join(escape(f.dir), "*", removedPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range removed {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		errs = append(errs, rmtree.All(path))
	}
	return errors.Join(errs...)
}

// escape returns a path as a pattern of filepath.Glob that matches it alone.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
