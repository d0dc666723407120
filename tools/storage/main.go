// Command storage is the provisioner of the tests' CSI driver: it makes a persistent volume for each claim of a storage
// class, by the driver's CreateVolume, and deletes it with the claim. It is built on the library of Kubernetes'
// provisioners, because the external-provisioner itself needs a version of that library that not every proxy serves.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

func main() {
	socket := flag.String("csi-address", "/csi/csi.sock", "`PATH` of the driver's socket")
	name := flag.String("driver", "dirs.quartet.test", "`NAME` of the driver")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *socket, *name); err != nil {
		klog.ErrorS(err, "the provisioner ends")
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, socket, name string) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	p := &provisioner{name: name, driver: csi.NewControllerClient(conn)}
	controller.NewProvisionController(ctx, client, name, p, controller.LeaderElection(false)).Run(ctx)
	return conn.Close()
}

// provisioner implements controller.Provisioner.
type provisioner struct {
	name   string
	driver csi.ControllerClient
}

// Provision implements controller.Provisioner.
func (p *provisioner) Provision(
	ctx context.Context, options controller.ProvisionOptions,
) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	claim := options.PVC
	capability := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == v1.PersistentVolumeBlock {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	answer, err := p.driver.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: options.PVName, VolumeCapabilities: []*csi.VolumeCapability{capability},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value()},
		Parameters:    options.StorageClass.Parameters,
	})
	if err != nil {
		return nil, controller.ProvisioningNoChange, err
	}
	volume := answer.GetVolume()
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			MountOptions: options.StorageClass.MountOptions,
			Capacity: v1.ResourceList{
				v1.ResourceStorage: *resource.NewQuantity(volume.GetCapacityBytes(), resource.BinarySI),
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: p.name, VolumeHandle: volume.GetVolumeId(), VolumeAttributes: volume.GetVolumeContext(),
			}},
		},
	}, controller.ProvisioningFinished, nil
}

// Delete implements controller.Provisioner.
func (p *provisioner) Delete(ctx context.Context, volume *v1.PersistentVolume) error {
	_, err := p.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volume.Spec.CSI.VolumeHandle})
	return err
}

// SupportsBlock implements controller.BlockProvisioner.
func (p *provisioner) SupportsBlock(context.Context) bool { return true }
