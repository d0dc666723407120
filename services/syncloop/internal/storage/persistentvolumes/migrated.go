package persistentvolumes

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// migratedPlugin is the plugin for volumes inline of kinds that CSI drivers have replaced. They are those of the
// driver.
type migratedPlugin struct{ *claimPlugin }

// Name implements volumes.Plugin. No directory has this name.
func (p *migratedPlugin) Name() string { return "kubernetes.io~migrated" }

// CanSupport implements volumes.Plugin.
func (p *migratedPlugin) CanSupport(v *v1.Volume) bool { return csimigration.IsInline(v) }

// SetUp implements volumes.Plugin.
func (p *migratedPlugin) SetUp(ctx context.Context, r volumes.Request) error {
	pv, err := csimigration.Inline(r.Volume, r.Pod.Namespace)
	if err != nil {
		return err
	}
	pv.Name = strings.ReplaceAll(pv.Name, "/", "~") // as the kubelet's directory
	return p.setUp(ctx, r, nil, pv)
}

// unsupported returns the error of a persistent volume of a kind that there is not, with the name of the field.
func unsupported(pv *v1.PersistentVolume) error {
	if _, err := csimigration.PersistentVolume(pv); err != nil {
		return fmt.Errorf("persistent volume %q: %w", pv.Name, err)
	}
	source := reflect.ValueOf(pv.Spec.PersistentVolumeSource)
	for i := range source.NumField() {
		if !source.Field(i).IsNil() {
			field, _, _ := strings.Cut(source.Type().Field(i).Tag.Get("json"), ",")
			return fmt.Errorf("persistent volume %q: spec.%s: no volume plugin matched: "+
				"this version of Quartet does not support this source", pv.Name, field)
		}
	}
	return errors.New("no volume plugin matched")
}
