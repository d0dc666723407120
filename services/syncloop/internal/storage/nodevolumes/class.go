package nodevolumes

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The parameters of a storage class that are not for the driver, as Kubernetes' provisioner knows them.
const (
	parameterPrefix = "csi.storage.k8s.io/"
	fsTypeParameter = parameterPrefix + "fstype"
	// fsTypeOld is the earlier name of fsTypeParameter.
	fsTypeOld = "fstype"
)

// The annotations of a persistent volume that Kubernetes' provisioner sets.
const (
	annotationProvisionedBy   = "pv.kubernetes.io/provisioned-by"
	annotationSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"      //nolint:gosec // it is a name
	annotationSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace" //nolint:gosec // it is a name
)

// noProvisioner is the provisioner of classes whose volumes an administrator makes.
const noProvisioner = "kubernetes.io/no-provisioner"

// planned returns the record of the volume of a claim by its class, before the driver was asked. It depends on nothing
// else.
func planned(name string, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*record, error) {
	if class.Provisioner == noProvisioner {
		return nil, fmt.Errorf("the storage class %q has the provisioner %s: a node without an API server has volumes of CSI drivers only",
			class.Name, noProvisioner)
	}
	p := parameters{claim: claim, volume: name, all: class.Parameters}
	source := &v1.CSIPersistentVolumeSource{Driver: class.Provisioner}
	source.ControllerPublishSecretRef = p.secret("controller-publish")
	source.NodeStageSecretRef = p.secret("node-stage")
	source.NodePublishSecretRef = p.secret("node-publish")
	source.ControllerExpandSecretRef = p.secret("controller-expand")
	source.NodeExpandSecretRef = p.secret("node-expand")
	r := &record{Phase: asked, Secret: p.secret("provisioner")}
	fsType := p.fsType()
	if r.Parameters = p.driver(); p.err != nil {
		return nil, fmt.Errorf("the storage class %q: %w", class.Name, p.err)
	}
	annotations := map[string]string{annotationProvisionedBy: class.Provisioner}
	if r.Secret != nil {
		annotations[annotationSecretName], annotations[annotationSecretNamespace] = r.Secret.Name, r.Secret.Namespace
	}
	mode := ptr.Deref(claim.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
	if mode == v1.PersistentVolumeFilesystem {
		source.FSType = fsType
	}
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	r.PV = &v1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: size},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, v1.PersistentVolumeReclaimDelete),
			StorageClassName:              class.Name, MountOptions: class.MountOptions, VolumeMode: &mode,
			ClaimRef:               ptr.To(referenceTo(claim)),
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: source},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
	return r, nil
}

// referenceTo returns a reference to a claim.
func referenceTo(claim *v1.PersistentVolumeClaim) v1.ObjectReference {
	return v1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}
}

// parameters reads the parameters of a storage class. Its first error stays.
type parameters struct {
	claim  *v1.PersistentVolumeClaim
	volume string
	all    map[string]string
	// known are the parameters that have been read.
	known []string
	err   error
}

// get returns a parameter that is not for the driver.
func (p *parameters) get(name string) string {
	p.known = append(p.known, name)
	return p.all[name]
}

// fsType returns the type of the file system; empty if the driver chooses it.
func (p *parameters) fsType() string {
	fresh, old := p.get(fsTypeParameter), p.get(fsTypeOld)
	if fresh != "" && old != "" && p.err == nil {
		p.err = fmt.Errorf("parameters: give %s or %s, not both", fsTypeParameter, fsTypeOld)
	}
	if fresh == "" {
		return old
	}
	return fresh
}

// secret returns the secret for a purpose, as its parameters name it; nil if they name none.
func (p *parameters) secret(purpose string) *v1.SecretReference {
	nameOf, namespaceOf := parameterPrefix+purpose+"-secret-name", parameterPrefix+purpose+"-secret-namespace"
	name, namespace := p.get(nameOf), p.get(namespaceOf)
	if name == "" && namespace == "" {
		return nil
	}
	if (name == "" || namespace == "") && p.err == nil {
		p.err = fmt.Errorf("parameters: give both %s and %s", nameOf, namespaceOf)
	}
	return &v1.SecretReference{Name: p.resolved(nameOf, name), Namespace: p.resolved(namespaceOf, namespace)}
}

// resolved returns a value with the names of the claim and the volume in the place of their variables.
func (p *parameters) resolved(parameter, text string) string {
	return os.Expand(text, func(variable string) string {
		switch variable {
		case "pv.name":
			return p.volume
		case "pvc.namespace":
			return p.claim.Namespace
		case "pvc.name":
			return p.claim.Name
		}
		name, isAnnotation := strings.CutPrefix(variable, "pvc.annotations['")
		name, isWhole := strings.CutSuffix(name, "']")
		if value, has := p.claim.Annotations[name]; isAnnotation && isWhole && has {
			return value
		}
		if p.err == nil {
			p.err = fmt.Errorf("parameters[%s]: %q of the claim %s/%s is not known", parameter, variable, p.claim.Namespace, p.claim.Name)
		}
		return ""
	})
}

// driver returns the parameters for the driver: all that have not been read. Those with the prefix of Kubernetes are
// wrong.
func (p *parameters) driver() map[string]string {
	rest := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(p.all)) {
		switch {
		case slices.Contains(p.known, name):
		case strings.HasPrefix(name, parameterPrefix):
			if p.err == nil {
				p.err = fmt.Errorf("parameters: found unknown parameter key %q with reserved namespace %s", name, parameterPrefix)
			}
		default:
			rest[name] = p.all[name]
		}
	}
	return rest
}

// checkTopology returns why volumes of a class cannot be on a node with a driver's topology; nil if they can.
func checkTopology(class *storagev1.StorageClass, node map[string]string) error {
	if len(class.AllowedTopologies) == 0 {
		return nil
	}
	for _, term := range class.AllowedTopologies {
		if !slices.ContainsFunc(term.MatchLabelExpressions, func(e v1.TopologySelectorLabelRequirement) bool {
			return !slices.Contains(e.Values, node[e.Key])
		}) {
			return nil
		}
	}
	return fmt.Errorf("the allowedTopologies of the storage class %q exclude this node, whose topology is %v", class.Name, node)
}
