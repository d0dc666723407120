package nodevolumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	fileMode = 0o600

	recordExtension   = ".json"
	releasedExtension = ".released"
)

// phase is how far the creation of a volume is.
type phase string

// The phases.
const (
	// asked: the driver was asked for the volume, or is about to be, and may have made it.
	asked phase = "asked"
	// made: the driver has made it.
	made phase = "made"
)

// record is a volume on disk. It is immutable.
type record struct {
	Phase phase `json:"phase"`
	// PV is the persistent volume. Its handle and its attributes are known when it is made.
	PV *v1.PersistentVolume `json:"persistentVolume"`
	// Parameters are those of the storage class for the driver, and Secret names the one for its creation and deletion.
	Parameters map[string]string   `json:"parameters,omitempty"`
	Secret     *v1.SecretReference `json:"secret,omitempty"`
	// Topology is where the volume has to be accessible; nil for anywhere.
	Topology map[string]string `json:"topology,omitempty"`
	// Told is the size of the volume's file system, as far as it is known.
	Told resource.Quantity `json:"told"`
	// Attachment is that to the node; nil if it is not attached.
	Attachment *attachment `json:"attachment,omitempty"`
}

// attachment is a volume's attachment to the node.
type attachment struct {
	// NodeID is the driver's name for the node.
	NodeID string `json:"nodeID"`
	// Done is true after the driver has attached the volume, and Context is its publish context.
	Done    bool              `json:"done"`
	Context map[string]string `json:"context,omitempty"`
}

// size returns the size of the volume, or the size that is asked for while it is being made.
func (r *record) size() resource.Quantity { return r.PV.Spec.Capacity[v1.ResourceStorage] }

// stored is a volume as read from the disk.
type stored struct {
	record   *record
	released bool
}

// disk are the steps on disk. Each is durable when it has returned.
type disk interface {
	// load returns the volumes with a record, and removes what an interrupted step has left.
	load() (map[string]stored, error)
	// save writes the record of a volume.
	save(name string, r *record) error
	// release marks a volume whose claim was deleted.
	release(name string) error
	// forget removes what there is of a volume.
	forget(name string) error
	// path returns the file of a record.
	path(name string) string
}

// folder is the disk of a real directory.
type folder struct {
	dir    string
	logger *slog.Logger
}

func (f folder) path(name string) string { return filepath.Join(f.dir, name+recordExtension) }

func (f folder) mark(name string) string { return filepath.Join(f.dir, name+releasedExtension) }

func (f folder) load() (map[string]stored, error) {
	if err := statedir.MakeDir(f.dir); err != nil {
		if _, missing := os.Stat(f.dir); !errors.Is(missing, fs.ErrNotExist) {
			return nil, err
		}
		f.logger.Warn("the directory of the records of volumes cannot be made; it is tried again with the first record",
			"dir", f.dir, telemetry.KeyError, err)
		return map[string]stored{}, nil // without a directory there is no record
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	all := map[string]stored{}
	var damaged []string
	for _, entry := range entries {
		file := filepath.Join(f.dir, entry.Name())
		name, isRecord := strings.CutSuffix(entry.Name(), recordExtension)
		mark, isMark := strings.CutSuffix(entry.Name(), releasedExtension)
		switch {
		case strings.Contains(entry.Name(), ".tmp-"):
			err = statedir.RemoveFile(file)
		case isRecord:
			r, wrong := read(file, name)
			if wrong != nil {
				f.logger.Error("the record of a volume cannot be used: the volume is not deleted with its claim",
					telemetry.KeyFile, file, telemetry.KeyError, wrong)
				damaged = append(damaged, name) // a mark stays with it
				continue
			}
			all[name] = stored{record: r}
		case isMark:
			if one, known := all[mark]; known { // ".json" is sorted before ".released"
				all[mark] = stored{record: one.record, released: true}
			} else if !slices.Contains(damaged, mark) {
				err = statedir.RemoveFile(file)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// read reads a record, and checks that it is one of the volume with a name.
func read(file, name string) (*record, error) {
	data, err := statedir.Read(file)
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	if r.PV == nil || r.PV.Name != name || r.PV.Spec.CSI == nil || r.PV.Spec.ClaimRef == nil ||
		r.Phase != asked && r.Phase != made {
		return nil, errors.New("it is not the record of the volume of its name")
	}
	return r, nil
}

func (f folder) save(name string, r *record) error {
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("the volume %q has an invalid name", name)
	}
	if _, err := statedir.Read(f.path(name)); statedir.IsUnreadable(err) {
		return fmt.Errorf("the record of a volume is not replaced: %w", err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of a volume: %w", err)
	}
	if err := statedir.MakeDir(f.dir); err != nil {
		return err
	}
	return statedir.WriteFileAtomic(f.path(name), data, fileMode)
}

func (f folder) release(name string) error {
	return statedir.WriteFileAtomic(f.mark(name), nil, fileMode)
}

// forget removes the record first: a mark without a record is removed by load.
func (f folder) forget(name string) error {
	if err := statedir.RemoveFile(f.path(name)); err != nil {
		return err
	}
	return statedir.RemoveFile(f.mark(name))
}
