package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/csidriver"
)

// auditPolicy records every call of a node.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: Metadata, userGroups: ["system:nodes"]}
- {level: None}
`

// volumeDriver is a CSI driver that stages and publishes.
type volumeDriver struct {
	*csidriver.Driver
	name   string
	attach bool
}

// volumeRig is what both nodes share: a cluster, a container runtime, CSI drivers with their volumes and claims.
type volumeRig struct {
	rig

	opts    volumeOptions
	cluster *cluster.Cluster
	admin   *kubernetes.Clientset
	drivers []volumeDriver
	audit   string

	stop    context.CancelFunc
	running sync.WaitGroup
}

func newVolumeRig(ctx context.Context, opts volumeOptions) (r *volumeRig, err error) {
	r = &volumeRig{rig: rig{bin: opts.Bin, dir: opts.Dir}, opts: opts, audit: filepath.Join(opts.Dir, "audit.log")}
	// Everything ends with close, also after an interrupt.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err := r.startRuntime(ctx); err != nil {
		return r, err
	}
	if err := r.startCluster(ctx); err != nil {
		return r, err
	}
	for _, attach := range opts.Modes {
		if err := r.startDriver(attach); err != nil {
			return r, err
		}
	}
	r.running.Go(func() { r.attachVolumes(background) })
	return r, r.createObjects(ctx)
}

func (r *volumeRig) startCluster(ctx context.Context) (err error) {
	policy := filepath.Join(r.opts.Dir, "audit.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	r.cluster, err = cluster.New(ctx, r.opts.Bin,
		// With its default limit the controller that attaches volumes would be slower than the nodes.
		cluster.Controllers("--kube-api-qps=200", "--kube-api-burst=400"),
		cluster.Flags("--audit-policy-file="+policy, "--audit-log-path="+r.audit))
	if err != nil {
		return err
	}
	r.admin, err = administrator(r.cluster, filepath.Join(r.opts.Dir, "admin"))
	return err
}

// startDriver starts a driver, which is not registered yet.
func (r *volumeRig) startDriver(attach bool) error {
	d := volumeDriver{name: driverName(attach), attach: attach}
	dir := filepath.Join(kubeletDir, "plugins", d.name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	d.Driver = csidriver.New(dir, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	if err := d.Serve(); err != nil {
		return err
	}
	r.drivers = append(r.drivers, d)
	return nil
}

// register registers the drivers with the running node until the returned function is called.
func (r *volumeRig) register(ctx context.Context) (unregister func() error) {
	ctx, cancel := context.WithCancel(ctx)
	group := &errgroup.Group{}
	for _, d := range r.drivers {
		group.Go(func() error {
			return csidriver.Register(ctx, filepath.Join(kubeletDir, "plugins_registry"), d.name, d.Socket())
		})
	}
	return func() error {
		cancel()
		return group.Wait()
	}
}

// driverName returns the name of the driver with a value of attachRequired.
func driverName(attach bool) string {
	if attach {
		return "attached.bench.quartet.test"
	}
	return "plain.bench.quartet.test"
}

// wrong returns what the drivers say that a node did wrong.
func (r *volumeRig) wrong() (all []string) {
	for _, d := range r.drivers {
		all = append(all, d.Wrong()...)
	}
	return all
}

// createObjects creates the drivers' objects, and for each pod a persistent volume and a claim that are bound.
func (r *volumeRig) createObjects(ctx context.Context) error {
	core := r.admin.CoreV1()
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: benchNamespace}}
	if _, err := core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, d := range r.drivers {
		if _, err := r.admin.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: d.name}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(d.attach)},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		for i := range r.opts.Pods {
			volume, claim := d.volume(i)
			if _, err := core.PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
				return err
			}
			if _, err := core.PersistentVolumeClaims(benchNamespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	return poll(ctx, pollStop, func(ctx context.Context) (bool, error) {
		claims, err := core.PersistentVolumeClaims(benchNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range claims.Items {
			if phase := claims.Items[i].Status.Phase; phase != v1.ClaimBound {
				return false, fmt.Errorf("claim %s is %s", claims.Items[i].Name, phase)
			}
		}
		_, err = core.ServiceAccounts(benchNamespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
}

// volume returns a volume of the driver, and its claim.
func (d *volumeDriver) volume(i int) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	meta := metav1.ObjectMeta{Name: claimName(d.attach, i), Namespace: benchNamespace}
	return &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: meta.Name},
			Spec: v1.PersistentVolumeSpec{
				AccessModes: modes, Capacity: size, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
				ClaimRef: &v1.ObjectReference{Namespace: benchNamespace, Name: meta.Name},
				PersistentVolumeSource: v1.PersistentVolumeSource{
					CSI: &v1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: meta.Name},
				},
			},
		}, &v1.PersistentVolumeClaim{
			ObjectMeta: meta,
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: modes, Resources: v1.VolumeResourceRequirements{Requests: size},
				StorageClassName: ptr.To(""), VolumeName: meta.Name,
			},
		}
}

func claimName(attach bool, i int) string {
	if attach {
		return fmt.Sprintf("attached-%d", i)
	}
	return fmt.Sprintf("plain-%d", i)
}

// close ends everything. The processes of containers end with the namespaces.
func (r *volumeRig) close() error {
	r.stop()
	for _, d := range r.drivers {
		d.Stop()
	}
	r.running.Wait()
	var errs []error
	if r.cluster != nil {
		errs = append(errs, r.cluster.Close())
	}
	return errors.Join(append(errs, r.stopRuntime())...)
}
