// Package csimigration turns volumes of kinds that Kubernetes once mounted itself (awsElasticBlockStore, azureDisk,
// azureFile, cinder, gcePersistentDisk, portworxVolume, vsphereVolume) into volumes of the CSI drivers that have
// replaced them. Every kubelet of this version does so.
package csimigration

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

// annotation marks a translated persistent volume with the name of its driver, as the controllers of a cluster do.
const annotation = "pv.kubernetes.io/migrated-to"

// PersistentVolume returns a persistent volume as one of a CSI driver. One of another kind is returned as it is. The
// given one is not changed.
func PersistentVolume(pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if !csitranslation.New().IsPVMigratable(pv) {
		return pv, nil
	}
	return translated(csitranslation.New().TranslateInTreePVToCSI(klog.Background(), pv))
}

// IsInline reports whether a volume of a pod's spec is of such a kind.
func IsInline(v *v1.Volume) bool { return csitranslation.New().IsInlineMigratable(v) }

// Inline returns such a volume of the spec of a pod in a namespace as a persistent volume of a CSI driver.
func Inline(v *v1.Volume, namespace string) (*v1.PersistentVolume, error) {
	return translated(csitranslation.New().TranslateInTreeInlineVolumeToCSI(klog.Background(), v, namespace))
}

// IsMigrated reports whether a persistent volume was translated.
func IsMigrated(pv *v1.PersistentVolume) bool {
	return pv != nil && pv.Spec.CSI != nil && pv.Annotations[annotation] != ""
}

// translated marks the result of a translation.
func translated(pv *v1.PersistentVolume, err error) (*v1.PersistentVolume, error) {
	if err != nil {
		return nil, fmt.Errorf("failed to translate in-tree pv to CSI: %w", err)
	}
	if pv.Annotations == nil {
		pv.Annotations = map[string]string{}
	}
	pv.Annotations[annotation] = pv.Spec.CSI.Driver
	return pv, nil
}
