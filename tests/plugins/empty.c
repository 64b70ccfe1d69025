/* SPDX-License-Identifier: Apache-2.0 */
/* A shared object that is no plug-in. */
int ls_backend_empty(void);
int ls_backend_empty(void)
{
    return 0;
}
